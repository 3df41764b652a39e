//! The unreliable datagrams (RFC 9221) of one application: each arrives unchanged, at most once.

use std::collections::BTreeSet;

use bytes::Bytes;
use squall_core::{Connection, DatagramError};
use squall_wire::Side;

use crate::rng::Rng;

/// The number that every datagram begins with, in bytes.
const NUMBER: usize = 8;
/// The end of the range from which a datagram's size is drawn, if the path carries so much.
const MAX_SIZE: u64 = 1_600;

/// What one application sends and has received.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// Numbers of the datagrams sent so far, and of all to be sent.
    sent: u64,
    planned: u64,
    /// Whether a datagram takes the place of the oldest if the queue is full.
    newest: bool,
    received: BTreeSet<u64>,
}

impl Datagrams {
    pub(crate) fn new(planned: u64, newest: bool) -> Self {
        Self {
            planned,
            newest,
            ..Self::default()
        }
    }

    /// Datagrams handed to the connection.
    pub(crate) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Datagrams that have arrived.
    pub(crate) fn received(&self) -> u64 {
        self.received.len() as u64
    }

    /// Sends until the queue is full or nothing is left.
    pub(crate) fn send(&mut self, connection: &mut Connection, from: Side) -> Result<(), String> {
        while self.sent < self.planned
            && let Some(most) = connection.max_datagram_size()
        {
            let size = size(self.sent, from).min(most);
            let datagram = contents(self.sent, from, size);
            let result = match self.newest {
                true => connection.send_newest_datagram(datagram),
                false => connection.send_datagram(datagram),
            };
            match result {
                Ok(()) => self.sent += 1,
                // An event will follow.
                Err(DatagramError::Blocked) => return Ok(()),
                Err(DatagramError::Closed) if connection.is_closed() => return Ok(()),
                Err(error) => {
                    return Err(format!("a datagram of {size} bytes of {most}: {error}"));
                }
            }
        }
        Ok(())
    }

    /// Reads all that have arrived, and compares them with what `from` sends.
    pub(crate) fn read(&mut self, connection: &mut Connection, from: Side) -> Result<(), String> {
        while let Some(datagram) = connection.read_datagram() {
            let Some(number) = datagram.first_chunk().map(|n| u64::from_le_bytes(*n)) else {
                return Err(format!("a datagram of {} bytes", datagram.len()));
            };
            if datagram != contents(number, from, datagram.len()) {
                return Err(format!("datagram {number} has the wrong bytes"));
            }
            if !self.received.insert(number) {
                return Err(format!("datagram {number} arrived twice"));
            }
        }
        Ok(())
    }
}

/// The generator of one datagram.
const fn generator(number: u64, from: Side) -> Rng {
    Rng::new(0x0064_6761_6d00_0000 ^ (2 * number + from as u64))
}

fn size(number: u64, from: Side) -> usize {
    NUMBER + generator(number, from).below(MAX_SIZE) as usize
}

/// What `from` sends as a datagram of this number and size.
fn contents(number: u64, from: Side, size: usize) -> Bytes {
    let mut bytes = vec![0; size.max(NUMBER)];
    let (front, rest) = bytes.split_at_mut(NUMBER);
    front.copy_from_slice(&number.to_le_bytes());
    generator(number, from).fill(rest);
    bytes.into()
}
