//! What plain TCP and TLS over TCP have in common: two ends of a connection that send and receive.
//! `threads` runs them in one process, `peers/` in separate ones.

use std::io;
use std::net::TcpStream;
use std::time::Instant;

use crate::source::Source;
use crate::sys;

/// Plaintext bytes per write call, and at most per read call. Plain TCP takes 0.48, 0.40, 0.34,
/// 0.33 and 0.34 CPU-seconds per GB with 64, 128, 256, 512 and 1024 KiB (busy Zen 5, alternating).
pub const BATCH: usize = 256 * 1024;

/// One end of a connection, after its handshake.
pub trait Channel {
    /// Sends at most [`BATCH`] bytes with one write call (more only if the kernel accepts a part).
    fn send(&mut self, data: &[u8]) -> io::Result<()>;
    /// Makes one read call, or none when a whole record is buffered, and passes the bytes to
    /// `sink`; returns how many. `None`: the peer has signalled the end of its data.
    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> io::Result<Option<usize>>;
    /// Sets the options of a bulk receiver. Call it after the handshake, whose messages are small.
    fn prepare_to_receive(&self) -> io::Result<()>;
    /// Signals the end of the data.
    fn finish(&mut self) -> io::Result<()>;
}

/// How to make the two ends of a contender.
pub trait Protocol: Send + Sync + 'static {
    /// Name for the threads.
    const NAME: &'static str;
    /// One end of a connection.
    type Channel: Channel;
    /// Makes the server's end of an accepted connection, handshake included.
    ///
    /// # Errors
    /// The handshake failed.
    fn server(&self, socket: TcpStream) -> io::Result<Self::Channel>;
    /// Makes the client's end of a connection, handshake included.
    ///
    /// # Errors
    /// The handshake failed.
    fn client(&self, socket: TcpStream) -> io::Result<Self::Channel>;
}

/// The congestion control of the controls, where the kernel has it: Linux's default, and the
/// algorithm that QUIC uses here. A machine configured for BBR would pace loopback, at a cost (0.39
/// against 0.21 CPU-seconds per GB on a Zen 5).
const CONGESTION_CONTROL: &str = "cubic";

/// A receiver wakes for half a batch rather than for a segment: the sender is the slower end, so
/// reading at once would make for small reads (0.27 against 0.32 CPU-seconds per GB, busy Zen 5).
const RECEIVE_LOW_WATER: i32 = BATCH as i32 / 2;

/// Sets the options of a bulk sender. Call it before the handshake, at both ends.
pub fn prepare(socket: &TcpStream) -> io::Result<()> {
    // A kernel without CUBIC keeps its own choice; the report shows which.
    let _ = sys::set_congestion_control(socket, CONGESTION_CONTROL);
    socket.set_nodelay(true)
}

/// Sets the options of a bulk receiver. Call it after the handshake, whose messages are small.
pub fn prepare_receiver(socket: &TcpStream) -> io::Result<()> {
    sys::set_receive_low_water(socket, RECEIVE_LOW_WATER)
}

/// The sender's side of one transfer: reads how much is wanted and sends it.
pub fn answer(channel: &mut impl Channel, source: &mut Source) -> io::Result<()> {
    let mut request = Vec::new();
    while request.len() < size_of::<u64>() {
        if channel
            .receive(&mut |bytes| request.extend_from_slice(bytes))?
            .is_none()
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let mut left = request
        .first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes));
    while left > 0 {
        if let Some(due) = source.due() {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let len = usize::try_from(left).map_or(BATCH, |left| left.min(BATCH));
        let piece = source.next(len);
        channel.send(&piece)?;
        left -= piece.len() as u64;
    }
    channel.finish()
}
