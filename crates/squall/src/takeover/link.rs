//! A link that carries one worker's datagrams from the successor to the predecessor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use squall_wire::DatagramBatch;

use super::Sent;
use super::channel::{Channel, WatchedChannel};
use super::runs::{LONGEST, Runs, parse};

/// Bytes that may wait in a link, if the system grants them.
const BUFFER: usize = 4 * 1024 * 1024;
/// Runs received before other tasks have their turn. Among them may be the worker that the runs are
/// for: under a flood it would never run, since tokio does not count the use of an `AsyncFd`.
const RUNS_A_TURN: u32 = 32;
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

    /// Sends runs in one message.
    pub(crate) fn send(&self, runs: &Runs) -> Sent {
        match self.0.send(&[runs.message()], &[]) {
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

    /// Whether the other end is closed. Call it only on the sending end.
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
        let mut runs = 0;
        loop {
            let received = self.0.receive(&mut message, &mut fds).await;
            fds.clear();
            match received {
                Ok(0) => return,
                Ok(len) => {
                    for run in message.get_mut(..len).map(parse).into_iter().flatten() {
                        pass_on(&run);
                        runs += 1;
                    }
                    if runs >= RUNS_A_TURN {
                        runs = 0;
                        tokio::task::yield_now().await;
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use squall_wire::{Ecn, Path};

    use super::*;

    /// A link with a constant backlog yields to its worker, which is another task of the thread.
    #[tokio::test]
    async fn a_busy_link_lets_other_tasks_run() {
        let (to, from) = Link::pair().unwrap();
        let path = Path {
            remote: "192.0.2.1:443".parse().unwrap(),
            local: None,
        };
        let mut sent = 0;
        loop {
            let run = DatagramBatch {
                path,
                ecn: Ecn::default(),
                segment_size: 1200,
                bytes: &mut [0; 1200],
            };
            let mut runs = Runs::default();
            runs.push(&run);
            match to.send(&runs) {
                Sent::Yes => sent += 1,
                _ => break,
            }
        }
        drop(to);
        assert!(sent > 2 * RUNS_A_TURN, "{sent}");
        let (received, since) = (Cell::new(0), Cell::new(0));
        let from = from.watch().unwrap();
        let receiving = from.receive_all(|_| {
            received.set(received.get() + 1);
            since.set(since.get() + 1);
            assert!(since.get() <= RUNS_A_TURN, "after {}", received.get());
        });
        let other = async {
            loop {
                since.set(0);
                tokio::task::yield_now().await;
            }
        };
        let both = async {
            tokio::select! {
                biased;
                () = receiving => {}
                () = other => {}
            }
        };
        tokio::time::timeout(Duration::from_secs(20), both)
            .await
            .unwrap();
        assert_eq!(received.get(), sent);
    }
}
