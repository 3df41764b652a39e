//! The two halves of a stream, as the application sees them.
//!
//! Every call takes the connection's lock once. A half that has to wait registers its waker with
//! the connection and is woken at most once per received run of datagrams.

mod recv;
mod send;

pub use recv::{Chunk, RecvStream};
pub use send::{SendStream, Stopped};
