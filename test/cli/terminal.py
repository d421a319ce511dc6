"""Drives `tidemark chat` at a pseudo-terminal; prints each step that happened as it should."""
import os, pty, select, sys, time

pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])

seen = b''


def wait_for(text, seconds=40):
    """Reads until the text has appeared; what came before it is forgotten."""
    global seen
    end = time.time() + seconds
    while text not in seen:
        if time.time() > end:
            print(f'{text!r} did not appear; there is {seen!r}')
            os.kill(pid, 9)
            sys.exit(1)
        if select.select([fd], [], [], 0.1)[0]:
            try:
                seen += os.read(fd, 4096)
            except OSError:
                break  # the other end is closed
    before, _, seen = seen.partition(text)
    return before


PROMPT = b'> '
loading = wait_for(PROMPT)
print('prompt shown')
if b'loading weights' in loading:
    print('loading shown')
os.write(fd, b'What is a file system?\r')
wait_for(b'\n')
while wait_for(b' ').strip() == b'':
    pass
print('answer began')
os.write(fd, b'\x03')
wait_for(PROMPT)
print('answer stopped, prompt shown')
os.write(fd, b'half')
wait_for(b'half')
os.write(fd, b'\x03')
wait_for(PROMPT)
print('typed line dropped')
os.write(fd, b'\x03')
wait_for(b'Ctrl-C again')
wait_for(PROMPT)
print('asked to leave twice')
os.write(fd, b'\x03')
end = time.time() + 20
while time.time() < end:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        print(f'left with {os.waitstatus_to_exitcode(status)}')
        sys.exit(0)
    if select.select([fd], [], [], 0.05)[0]:
        try:
            os.read(fd, 4096)
        except OSError:
            pass
print('did not end')
os.kill(pid, 9)
sys.exit(1)
