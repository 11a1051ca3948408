"""A link that can be slow: connections that iptables redirects here go on to where they were meant to. After SIGUSR1, for two seconds,
every piece of data waits 0.3 s before it is passed on."""
import asyncio
import signal
import socket
import struct
import time

SO_ORIGINAL_DST, MARK, SLOW_SECONDS, WAIT_SECONDS = 80, 7, 2.0, 0.3
slow_until = 0.0


def be_slow():
    global slow_until
    slow_until = time.monotonic() + SLOW_SECONDS


async def pump(reader, writer):
    try:
        while data := await reader.read(1 << 18):
            if time.monotonic() < slow_until:
                await asyncio.sleep(WAIT_SECONDS)
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def pass_on(reader, writer):
    origin = writer.get_extra_info("socket").getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, address = struct.unpack("!2xH4s8x", origin)
    out = socket.socket()
    out.setblocking(False)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)  # not redirected once more
    out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        await asyncio.get_running_loop().sock_connect(out, (socket.inet_ntoa(address), port))
        far_reader, far_writer = await asyncio.open_connection(sock=out)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))


async def main():
    server = await asyncio.start_server(pass_on, "0.0.0.0", 0)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, be_slow)
    print("listens", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
