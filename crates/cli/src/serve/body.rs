//! The body of every response.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;

use super::reader::Reader;

/// Why a body ended early. Its sender then ends the response in the transport's way.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a response: data in memory is one `Bytes`, handed out without a copy.
pub(crate) enum Body {
    Empty,
    Whole(Bytes),
    File(Reader),
    /// Data from elsewhere, such as the application behind the reverse proxy.
    Stream(UnsyncBoxBody<Bytes, BoxError>),
}

impl Body {
    /// A short text.
    pub(crate) fn text(text: &'static str) -> Self {
        Self::Whole(Bytes::from_static(text.as_bytes()))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.size_hint())
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::Empty;
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Self::File(reader) => reader
                .poll_read(cx)
                .map(|read| Some(read?.map(Frame::data).map_err(Into::into))),
            Self::Stream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole(bytes) => bytes.is_empty(),
            Self::File(reader) => reader.remaining() == 0,
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::File(reader) => SizeHint::with_exact(reader.remaining()),
            Self::Stream(body) => body.size_hint(),
        }
    }
}
