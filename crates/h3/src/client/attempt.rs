//! An attempt to connect to an origin, shared by the requests that wait for it.
//!
//! ```text
//!   first request ─ begins ─> attempt ─ connect ─> addresses, several at a time
//!   all requests  <─ Progress ─┘    Connecting ─> Connecting, early ─> Connected
//!                                        └───────────────┴───────────> Failed
//! ```

use std::io;
use std::sync::{Arc, Weak};

use squall::{CloseReason, ConnectError};
use tokio::sync::watch;

use super::SendRequest;
use crate::error::Error;

/// How far an attempt is.
#[derive(Clone)]
pub(super) enum Progress {
    /// No server has answered. On this connection, if there is one, requests can be sent as early
    /// data; its address may turn out to be dead.
    Connecting(Option<SendRequest>),
    /// The handshake with a server is complete.
    Connected(SendRequest),
    /// No address answered.
    Failed(Arc<io::Error>),
}

/// The end of an attempt that makes progress.
pub(super) type Reporter = watch::Sender<Progress>;

/// A request's end of an attempt.
#[derive(Clone)]
pub(super) struct Attempt(watch::Receiver<Progress>);

/// A connection for a request.
pub(super) struct Reached {
    pub(super) requests: SendRequest,
    /// The connection has not been used before.
    pub(super) is_new: bool,
    /// The attempt that made it, if its handshake is not complete: the request is early data.
    pub(super) early: Option<Attempt>,
}

impl Attempt {
    /// An attempt and the end that makes progress.
    pub(super) fn begin() -> (Arc<Reporter>, Self) {
        let (reporter, progress) = watch::channel(Progress::Connecting(None));
        (Arc::new(reporter), Self(progress))
    }

    /// Joins an attempt, if it is still in progress.
    pub(super) fn join(reporter: &Weak<Reporter>) -> Option<Self> {
        Some(Self(reporter.upgrade()?.subscribe()))
    }

    /// Waits for a connection; if `may_be_early`, for one that can send early data. `None`: the
    /// attempt was cancelled, because its runtime ended or the resolver panicked.
    ///
    /// # Errors
    /// No address answers.
    pub(super) async fn connection(mut self, may_be_early: bool) -> Result<Option<Reached>, Error> {
        let usable = |progress: &Progress| match progress {
            Progress::Connecting(Some(early)) => may_be_early && !early.is_closed(),
            Progress::Connecting(None) => false,
            Progress::Connected(_) | Progress::Failed(_) => true,
        };
        let progress = self
            .0
            .wait_for(usable)
            .await
            .map(|progress| progress.clone());
        match progress {
            Ok(Progress::Connecting(Some(requests))) => Ok(Some(Reached {
                requests,
                is_new: true,
                early: Some(self),
            })),
            Ok(Progress::Connected(requests)) => Ok(Some(Reached {
                requests,
                is_new: true,
                early: None,
            })),
            Ok(Progress::Failed(error)) => Err(Error::Connect(copy(&error))),
            Ok(Progress::Connecting(None)) | Err(_) => Ok(None),
        }
    }

    /// Waits for the attempt's end, and returns whether this is its connection.
    pub(super) async fn ends_with(&mut self, requests: &SendRequest) -> bool {
        let is_over = |progress: &Progress| !matches!(progress, Progress::Connecting(_));
        match self.0.wait_for(is_over).await.as_deref() {
            Ok(Progress::Connected(connected)) => connected.is_same(requests),
            _ => false,
        }
    }

    /// Ready when early data on this connection is lost: another address has answered, or none has.
    pub(super) async fn leaves(&mut self, early: &SendRequest) {
        let leaves = |progress: &Progress| match progress {
            Progress::Connecting(_) => false,
            Progress::Connected(requests) => !requests.is_same(early),
            Progress::Failed(_) => true,
        };
        if self.0.wait_for(leaves).await.is_err() {
            // It ended with this connection.
            std::future::pending::<()>().await;
        }
    }
}

/// The error of a shared attempt, for one of its requests. Types that callers may look for remain.
fn copy(error: &Arc<io::Error>) -> io::Error {
    if let Some(code) = error.raw_os_error() {
        return io::Error::from_raw_os_error(code);
    }
    let inner = error.get_ref();
    if let Some(reason) = inner.and_then(|inner| inner.downcast_ref::<CloseReason>()) {
        return reason.clone().into();
    }
    if let Some(reason) = inner.and_then(|inner| inner.downcast_ref::<ConnectError>()) {
        return reason.clone().into();
    }
    io::Error::new(error.kind(), Arc::clone(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_error_has_the_same_text_and_kind() {
        let errors = [
            io::Error::from_raw_os_error(13),
            CloseReason::HandshakeTimeout.into(),
            ConnectError::EndpointClosed.into(),
            io::Error::new(io::ErrorKind::NotFound, "no address"),
        ];
        for error in errors {
            let error = Arc::new(error);
            let copy = copy(&error);
            assert_eq!(copy.to_string(), error.to_string());
            assert_eq!(copy.kind(), error.kind());
            let reason = |error: &io::Error| {
                let inner = error.get_ref()?;
                inner.downcast_ref::<CloseReason>().cloned()
            };
            assert_eq!(reason(&copy), reason(&error));
        }
    }
}
