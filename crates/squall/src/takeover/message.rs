//! The messages between the two processes. Both are builds of squall, perhaps of different
//! releases: the version is the first thing sent.

use std::io;

const MAGIC: [u8; 7] = *b"squallT";
const VERSION: u8 = 1;

/// Bytes of a greeting.
const GREETING: usize = MAGIC.len() + 1 + 3 + 32 + 1 + 32;

/// The first message of the predecessor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) workers: u8,
    /// The length of its connection ids, in bytes.
    pub(crate) id_len: u8,
    /// How many descriptors of the application follow.
    pub(crate) descriptors: u8,
    pub(crate) reset_key: [u8; 32],
    pub(crate) token_key: Option<[u8; 32]>,
}

impl Greeting {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(GREETING);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, self.workers, self.id_len, self.descriptors]);
        bytes.extend(self.reset_key);
        bytes.push(self.token_key.is_some().into());
        bytes.extend(self.token_key.unwrap_or_default());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let versioned = bytes.strip_prefix(&MAGIC).and_then(<[u8]>::split_first);
        let Some((&version, rest)) = versioned else {
            return Err(invalid(
                "the process that listens there is not a squall endpoint",
            ));
        };
        if version != VERSION {
            return Err(invalid(&format!(
                "the running process uses version {version} of the takeover protocol, and this process version {VERSION}"
            )));
        }
        let parse = || {
            let (&[workers, id_len, descriptors], rest) = rest.split_first_chunk()?;
            let (&reset_key, rest) = rest.split_first_chunk()?;
            let (&has_token_key, rest) = rest.split_first()?;
            let token_key = *rest.first_chunk()?;
            Some(Self {
                workers,
                id_len,
                descriptors,
                reset_key,
                token_key: (has_token_key != 0).then_some(token_key),
            })
        };
        parse().ok_or_else(|| invalid("the running process sent an incomplete greeting"))
    }
}

/// A message of one byte, except for a refusal, whose reason follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Word {
    /// Descriptors come with it.
    Descriptors = b'F',
    /// The successor can start.
    Ready = b'R',
    /// The predecessor no longer reads its sockets.
    Stopped = b'S',
    /// The successor has started; the predecessor replies with the same word and accepts nothing
    /// more.
    Done = b'D',
    /// The predecessor cannot hand over.
    Refused = b'E',
}

impl Word {
    pub(crate) const fn bytes(self) -> [u8; 1] {
        [self as u8]
    }

    /// Whether a message is this word.
    pub(crate) fn is(self, message: &[u8]) -> bool {
        message.first() == Some(&(self as u8))
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_of_other_versions_are_rejected() {
        for token_key in [None, Some([3; 32])] {
            let greeting = Greeting {
                workers: 4,
                id_len: 8,
                descriptors: 1,
                reset_key: [2; 32],
                token_key,
            };
            let bytes = greeting.encode();
            assert_eq!(Greeting::decode(&bytes).unwrap(), greeting);
            for len in 0..bytes.len() {
                assert!(Greeting::decode(&bytes[..len]).is_err(), "{len}");
            }
            let mut later = bytes;
            later[MAGIC.len()] = 2;
            let error = Greeting::decode(&later).unwrap_err().to_string();
            assert!(error.contains("version 2"), "{error}");
        }
    }
}
