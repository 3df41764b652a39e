//! What servers report to `tracing`. Without the feature of that name it is compiled out.
//!
//! The client learns of these failures only that its stream was reset. Levels are hyper's.

use squall::StreamId;

use crate::error::{BoxError, Error};
use crate::shared::Shared;

/// The service returned an error instead of a response, or is never ready again.
pub(super) fn service_failed(shared: &Shared, stream: StreamId, error: impl Into<BoxError>) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        peer = %shared.connection.remote_address(),
        stream = stream.0,
        error = %error.into(),
        "the HTTP service failed; the request's stream is reset"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = (shared, stream, error);
}

/// The response cannot be sent, or not to its end.
pub(super) fn response_failed(shared: &Shared, stream: StreamId, error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::debug!(
        peer = %shared.connection.remote_address(),
        stream = stream.0,
        %error,
        "a response cannot be sent; its stream is reset"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = (shared, stream, error);
}
