console.log("install: nothing yet")
