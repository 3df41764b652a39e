//! What the two processes tell each other. Both are builds of squall, perhaps of different
//! releases: the version is the first thing sent.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use squall_wire::{DatagramBatch, Ecn, Path};

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
            return Err(invalid("whoever listens there is not a squall endpoint"));
        };
        if version != VERSION {
            return Err(invalid(&format!(
                "the running process hands over by version {version}, and this one takes over by version {VERSION}"
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
    /// The predecessor reads its sockets no more.
    Stopped = b'S',
    /// The successor has started; the predecessor says the same, and then accepts nothing more.
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

/// Everything about a run but its bytes.
pub(super) fn encode_head(run: &DatagramBatch<'_>) -> Vec<u8> {
    let mut head = Vec::with_capacity(64);
    head.push(run.ecn.bits());
    head.extend(run.segment_size.to_be_bytes());
    put_ip(&mut head, Some(run.path.remote.ip()));
    head.extend(run.path.remote.port().to_be_bytes());
    let (flow, scope) = match run.path.remote {
        SocketAddr::V4(_) => (0, 0),
        SocketAddr::V6(remote) => (remote.flowinfo(), remote.scope_id()),
    };
    head.extend(flow.to_be_bytes());
    head.extend(scope.to_be_bytes());
    put_ip(&mut head, run.path.local);
    head
}

/// The run in a message; `None` if the message is not one.
pub(super) fn decode_run(message: &mut [u8]) -> Option<DatagramBatch<'_>> {
    let rest: &[u8] = message;
    let (&ecn, rest) = rest.split_first()?;
    let (&segment_size, rest) = rest.split_first_chunk()?;
    let (remote, rest) = take_ip(rest)?;
    let (&port, rest) = rest.split_first_chunk()?;
    let (&flow, rest) = rest.split_first_chunk()?;
    let (&scope, rest) = rest.split_first_chunk()?;
    let (local, rest) = take_ip(rest)?;
    let port = u16::from_be_bytes(port);
    let remote = match remote? {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), port),
        IpAddr::V6(ip) => {
            let (flow, scope) = (u32::from_be_bytes(flow), u32::from_be_bytes(scope));
            SocketAddrV6::new(ip, port, flow, scope).into()
        }
    };
    let head = message.len() - rest.len();
    Some(DatagramBatch {
        path: Path { remote, local },
        ecn: Ecn::from_bits(ecn),
        segment_size: u16::from_be_bytes(segment_size),
        bytes: message.get_mut(head..)?,
    })
}

fn put_ip(into: &mut Vec<u8>, ip: Option<IpAddr>) {
    match ip {
        None => into.push(0),
        Some(IpAddr::V4(ip)) => {
            into.push(4);
            into.extend(ip.octets());
        }
        Some(IpAddr::V6(ip)) => {
            into.push(6);
            into.extend(ip.octets());
        }
    }
}

fn take_ip(bytes: &[u8]) -> Option<(Option<IpAddr>, &[u8])> {
    let (&family, rest) = bytes.split_first()?;
    match family {
        0 => Some((None, rest)),
        4 => {
            let (&ip, rest) = rest.split_first_chunk::<4>()?;
            Some((Some(Ipv4Addr::from(ip).into()), rest))
        }
        6 => {
            let (&ip, rest) = rest.split_first_chunk::<16>()?;
            Some((Some(Ipv6Addr::from(ip).into()), rest))
        }
        _ => None,
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_arrives_as_it_was_sent() {
        let remotes = ["192.0.2.1:443", "[2001:db8::1]:1", "[fe80::1%7]:65535"];
        for remote in remotes.map(|remote| remote.parse().unwrap()) {
            for local in [None, Some("192.0.2.9"), Some("2001:db8::9")] {
                let mut bytes = *b"two packets";
                let run = DatagramBatch {
                    path: Path {
                        remote,
                        local: local.map(|ip| ip.parse().unwrap()),
                    },
                    ecn: Ecn::Ce,
                    segment_size: 7,
                    bytes: &mut bytes,
                };
                let mut message = encode_head(&run);
                let head = message.len();
                message.extend_from_slice(run.bytes);
                let arrived = decode_run(&mut message).unwrap();
                assert_eq!((arrived.path, arrived.ecn), (run.path, run.ecn));
                assert_eq!((arrived.segment_size, &*arrived.bytes), (7, &*run.bytes));
                for len in 0..head {
                    assert!(decode_run(&mut message.clone()[..len]).is_none(), "{len}");
                }
            }
        }
    }

    #[test]
    fn greetings_of_other_versions_are_refused() {
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
