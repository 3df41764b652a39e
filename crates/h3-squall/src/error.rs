//! squall's errors in h3's types.

use std::sync::Arc;

use h3::quic::{ConnectionErrorIncoming, StreamErrorIncoming};
use squall::{CloseReason, ReadError, WriteError};

/// Why a connection ended. Only an end caused by the peer's HTTP/3 is an application close, since
/// h3 takes it for the peer's error code. If this end closed the connection, h3 already knows, or
/// it was closed without h3.
pub(crate) fn of_connection(reason: CloseReason) -> ConnectionErrorIncoming {
    match reason {
        CloseReason::Application {
            code, remote: true, ..
        } => ConnectionErrorIncoming::ApplicationClose { error_code: code },
        CloseReason::IdleTimeout | CloseReason::HandshakeTimeout => {
            ConnectionErrorIncoming::Timeout
        }
        other => ConnectionErrorIncoming::Undefined(Arc::new(other)),
    }
}

/// As [`of_connection`], on a stream.
pub(crate) fn of_lost(reason: CloseReason) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming {
        connection_error: of_connection(reason),
    }
}

pub(crate) fn of_write(error: WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(error_code) => StreamErrorIncoming::StreamTerminated { error_code },
        WriteError::ConnectionLost(reason) => of_lost(reason),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}

pub(crate) fn of_read(error: ReadError) -> StreamErrorIncoming {
    match error {
        ReadError::Reset(error_code) => StreamErrorIncoming::StreamTerminated { error_code },
        ReadError::ConnectionLost(reason) => of_lost(reason),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_codes_and_kinds() {
        let closed = |remote| CloseReason::Application {
            code: 0x10c,
            reason: "".into(),
            remote,
        };
        let remote = of_connection(closed(true));
        assert!(
            matches!(
                remote,
                ConnectionErrorIncoming::ApplicationClose { error_code: 0x10c }
            ),
            "{remote:?}"
        );
        for reason in [CloseReason::IdleTimeout, CloseReason::HandshakeTimeout] {
            let timeout = of_connection(reason);
            assert!(
                matches!(timeout, ConnectionErrorIncoming::Timeout),
                "{timeout:?}"
            );
        }
        for reason in [
            closed(false),
            CloseReason::Reset,
            CloseReason::VersionMismatch,
        ] {
            let other = of_connection(reason.clone());
            let ConnectionErrorIncoming::Undefined(error) = &other else {
                panic!("{other:?}");
            };
            assert_eq!(
                error.downcast_ref(),
                Some(&reason),
                "the error itself is there"
            );
        }
        let stopped = of_write(WriteError::Stopped(7));
        assert!(
            matches!(
                stopped,
                StreamErrorIncoming::StreamTerminated { error_code: 7 }
            ),
            "{stopped:?}"
        );
        let reset = of_read(ReadError::Reset(8));
        assert!(
            matches!(
                reset,
                StreamErrorIncoming::StreamTerminated { error_code: 8 }
            ),
            "{reset:?}"
        );
        for lost in [
            of_write(WriteError::ConnectionLost(closed(true))),
            of_read(ReadError::ConnectionLost(closed(true))),
        ] {
            let StreamErrorIncoming::ConnectionErrorIncoming { connection_error } = &lost else {
                panic!("{lost:?}");
            };
            assert!(matches!(
                connection_error,
                ConnectionErrorIncoming::ApplicationClose { error_code: 0x10c }
            ));
        }
        for ended in [of_write(WriteError::Closed), of_read(ReadError::Closed)] {
            assert!(
                matches!(ended, StreamErrorIncoming::Unknown(_)),
                "{ended:?}"
            );
        }
    }
}
