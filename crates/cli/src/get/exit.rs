//! Why a transfer failed: one line, and curl's exit code.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// curl's exit codes (curl's manual, "EXIT CODES").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    FailedInit = 2,
    CouldNotResolve = 6,
    CouldNotConnect = 7,
    HttpError = 22,
    WriteError = 23,
    ReadError = 26,
    Timeout = 28,
    RangeError = 33,
    TlsHandshake = 35,
    TooManyRedirects = 47,
    Receive = 56,
    Certificate = 60,
    Http3 = 95,
}

/// A failure.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) code: Code,
    text: String,
}

impl Failed {
    pub(crate) fn new(code: Code, text: impl fmt::Display) -> Self {
        Self {
            code,
            text: text.to_string(),
        }
    }

    /// A failure of HTTP/3.
    pub(crate) fn http3(error: &squall_h3::Error) -> Self {
        let code = match error {
            squall_h3::Error::Connect(error) => connecting(error),
            squall_h3::Error::Connection(squall::CloseReason::IdleTimeout) => Code::Timeout,
            _ => Code::Http3,
        };
        Self::new(code, error)
    }

    /// A failure of the HTTP/2 and HTTP/1.1 client.
    pub(crate) fn tcp(error: &hyper_util::client::legacy::Error) -> Self {
        let io = source_io(error);
        let code = match io {
            Some(io) if error.is_connect() => connecting(io),
            _ if error.is_connect() => Code::CouldNotConnect,
            _ => Code::Receive,
        };
        // The last source says what happened, those above it only where.
        let mut last: &dyn StdError = error;
        while let Some(source) = last.source() {
            last = source;
        }
        Self::new(code, last)
    }
}

/// The code for an error of connecting.
fn connecting(error: &io::Error) -> Code {
    let text = error.to_string();
    if text.contains("certificate") {
        return Code::Certificate;
    }
    match error.kind() {
        io::ErrorKind::NotFound => Code::CouldNotResolve,
        io::ErrorKind::TimedOut => Code::Timeout,
        io::ErrorKind::InvalidData => Code::TlsHandshake,
        _ if text.contains("failed to lookup") => Code::CouldNotResolve,
        _ => Code::CouldNotConnect,
    }
}

/// The error of the system or of TLS underlying an error.
fn source_io<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a io::Error> {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io);
        }
        next = error.source();
    }
    None
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
