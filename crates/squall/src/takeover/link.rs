//! A way for one worker's datagrams from the successor to the predecessor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use squall_wire::DatagramBatch;

use super::Sent;
use super::channel::{Channel, WatchedChannel};
use super::message::{decode_run, encode_head};

/// Bytes that may wait in a link, if the system grants them.
const BUFFER: usize = 4 * 1024 * 1024;
/// Bytes of the longest message: a GRO bundle and its head.
const LONGEST: usize = 65_536 + 128;
/// The wait after an error.
const PAUSE: Duration = Duration::from_millis(10);

/// One end of a link.
#[derive(Debug)]
pub(crate) struct Link(Channel);

impl Link {
    /// Both ends.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = Channel::pair(BUFFER)?;
        Ok((Self(one), Self(other)))
    }

    /// The end that came from the predecessor.
    pub(super) fn of(fd: OwnedFd) -> Self {
        Self(Channel::of(fd))
    }

    /// Sends a run.
    pub(crate) fn send(&self, run: &DatagramBatch<'_>) -> Sent {
        match self.0.send(&[&encode_head(run), run.bytes], &[]) {
            Ok(()) => Sent::Yes,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe
                        | io::ErrorKind::ConnectionReset
                        | io::ErrorKind::ConnectionRefused
                ) =>
            {
                Sent::Gone
            }
            Err(_) => Sent::Full,
        }
    }

    /// Whether the other end is closed. Only the end that sends may ask.
    pub(crate) fn is_gone(&self) -> bool {
        let end = self.0.receive(&mut [0], &mut Vec::new());
        end.map_or_else(
            |error| error.kind() != io::ErrorKind::WouldBlock,
            |len| len == 0,
        )
    }

    /// Prepares to receive. To be called on a runtime's thread.
    ///
    /// # Errors
    /// The system refused to watch the descriptor.
    pub(crate) fn watch(self) -> io::Result<WatchedLink> {
        self.0.watch().map(WatchedLink)
    }
}

/// An end that receives.
pub(crate) struct WatchedLink(WatchedChannel);

impl WatchedLink {
    /// Passes on each run that arrives. Returns when the other end is closed.
    pub(crate) async fn receive_all(self, mut pass_on: impl FnMut(&DatagramBatch<'_>)) {
        let mut message = vec![0; LONGEST];
        // A link carries no descriptors.
        let mut fds = Vec::new();
        loop {
            let received = self.0.receive(&mut message, &mut fds).await;
            fds.clear();
            match received {
                Ok(0) => return,
                Ok(len) => {
                    if let Some(run) = message.get_mut(..len).and_then(decode_run) {
                        pass_on(&run);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return,
                // The system is short of memory, for example.
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
