//! Plain TCP: the baseline of every other figure.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use super::channel::{BATCH, Channel, Protocol, prepare, prepare_receiver};

/// Plain TCP.
pub struct Plain;

impl Protocol for Plain {
    const NAME: &'static str = "tcp";
    type Channel = PlainChannel;

    fn server(&self, socket: TcpStream) -> io::Result<PlainChannel> {
        PlainChannel::new(socket)
    }

    fn client(&self, socket: TcpStream) -> io::Result<PlainChannel> {
        PlainChannel::new(socket)
    }
}

/// One end of a plain connection.
pub struct PlainChannel {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl PlainChannel {
    fn new(socket: TcpStream) -> io::Result<Self> {
        prepare(&socket)?;
        Ok(Self {
            socket,
            buffer: vec![0; BATCH],
        })
    }
}

impl Channel for PlainChannel {
    fn send(&mut self, data: &[u8]) -> io::Result<()> {
        self.socket.write_all(data)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> io::Result<Option<usize>> {
        let count = self.socket.read(&mut self.buffer)?;
        if count == 0 {
            return Ok(None);
        }
        sink(&self.buffer[..count]);
        Ok(Some(count))
    }

    fn prepare_to_receive(&self) -> io::Result<()> {
        prepare_receiver(&self.socket)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }
}
