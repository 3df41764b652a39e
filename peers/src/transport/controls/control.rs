//! The frame that the tool's `tcp` and `tls` are written for; see the tool's own for the reasons and measurements behind
//! each setting.

use std::io;
use std::net::TcpStream;

use crate::sys;

/// Plaintext bytes a write call and at most a read call.
pub(crate) const BATCH: usize = 256 * 1024;

/// One end of a connection, after its handshake.
pub(crate) trait Channel {
    /// Sends at most [`BATCH`] bytes with one write call (more only where the kernel took a part).
    fn send(&mut self, data: &[u8]) -> io::Result<()>;
    /// Makes one read call, or none when a whole record is buffered, and gives what came to
    /// `sink`; returns how many bytes that was. `None`: the peer sent everything and said so.
    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> io::Result<Option<usize>>;
    /// Sets what a bulk receiver would set; after the handshake, whose messages are small.
    fn prepare_to_receive(&self) -> io::Result<()>;
    /// Says that everything was sent.
    fn finish(&mut self) -> io::Result<()>;
}

/// How to make the two ends of a contender.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Names the contender.
    #[allow(dead_code, reason = "the tool names threads by it")]
    const NAME: &'static str;
    type Channel: Channel;
    fn server(&self, socket: TcpStream) -> io::Result<Self::Channel>;
    fn client(&self, socket: TcpStream) -> io::Result<Self::Channel>;
}

/// Sets what a bulk sender would set; before the handshake, at both ends.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    // A kernel without CUBIC keeps its own choice.
    let _ = sys::set_congestion_control(socket, "cubic");
    socket.set_nodelay(true)
}

/// A read waits for half a batch, or for the end.
pub(crate) fn prepare_receiver(socket: &TcpStream) -> io::Result<()> {
    sys::set_receive_low_water(socket, BATCH as i32 / 2)
}
