//! Runs on their way to another process. The runs of one receive call share a message, as far as
//! they fit, because under a flood of datagrams that belong to no connection, every run is a single
//! datagram.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use squall_wire::{DatagramBatch, Ecn, Path};

/// Bytes of the longest message: a GRO bundle and its head.
pub(super) const LONGEST: usize = 65_536 + 128;
/// Bytes before the addresses: the run's length, its ECN field and the size of its segments.
const FIXED: usize = 4 + 1 + 2;
/// Bytes of the longest head: both addresses are IPv6.
const LONGEST_HEAD: usize = FIXED + 17 + 2 + 4 + 4 + 17;
const _: () = assert!(u16::MAX as usize + LONGEST_HEAD <= LONGEST);

/// The runs of a message.
#[derive(Default)]
pub(crate) struct Runs {
    message: Vec<u8>,
    count: u64,
}

impl Runs {
    /// Adds a copy of a run, or returns `false` if the message is full.
    pub(crate) fn push(&mut self, run: &DatagramBatch<'_>) -> bool {
        let begin = self.message.len();
        if begin + LONGEST_HEAD + run.bytes.len() > LONGEST {
            return false;
        }
        append(&mut self.message, run);
        self.count += 1;
        true
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The message.
    pub(super) fn message(&self) -> &[u8] {
        &self.message
    }

    /// The runs, as they were pushed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = DatagramBatch<'_>> {
        parse(&mut self.message)
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.message.clear();
        self.count = 0;
    }
}

/// The runs in a message, up to the first part that is not one.
pub(super) fn parse(message: &mut [u8]) -> impl Iterator<Item = DatagramBatch<'_>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        let (run, after) = split_first(std::mem::take(&mut rest))?;
        rest = after;
        Some(run)
    })
}

fn append(to: &mut Vec<u8>, run: &DatagramBatch<'_>) {
    let len = u32::try_from(run.bytes.len()).unwrap_or(u32::MAX);
    to.extend(len.to_be_bytes());
    to.push(run.ecn.bits());
    to.extend(run.segment_size.to_be_bytes());
    put_ip(to, Some(run.path.remote.ip()));
    to.extend(run.path.remote.port().to_be_bytes());
    let (flow, scope) = match run.path.remote {
        SocketAddr::V4(_) => (0, 0),
        SocketAddr::V6(remote) => (remote.flowinfo(), remote.scope_id()),
    };
    to.extend(flow.to_be_bytes());
    to.extend(scope.to_be_bytes());
    put_ip(to, run.path.local);
    to.extend_from_slice(run.bytes);
}

/// The first run and what follows it; `None` if the message does not begin with one.
fn split_first(message: &mut [u8]) -> Option<(DatagramBatch<'_>, &mut [u8])> {
    let rest: &[u8] = message;
    let (&len, rest) = rest.split_first_chunk()?;
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
    let after_head = message.get_mut(head..)?;
    let len = usize::try_from(u32::from_be_bytes(len)).ok()?;
    let (bytes, after) = after_head.split_at_mut_checked(len)?;
    let run = DatagramBatch {
        path: Path { remote, local },
        ecn: Ecn::from_bits(ecn),
        segment_size: u16::from_be_bytes(segment_size),
        bytes,
    };
    Some((run, after))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn run<'b>(remote: &str, local: Option<&str>, bytes: &'b mut [u8]) -> DatagramBatch<'b> {
        DatagramBatch {
            path: Path {
                remote: remote.parse().unwrap(),
                local: local.map(|ip| ip.parse().unwrap()),
            },
            ecn: Ecn::Ce,
            segment_size: 7,
            bytes,
        }
    }

    #[test]
    fn runs_arrive_as_they_were_sent() {
        let remotes = ["192.0.2.1:443", "[2001:db8::1]:1", "[fe80::1%7]:65535"];
        let locals = [None, Some("192.0.2.9"), Some("2001:db8::9")];
        let mut runs = Runs::default();
        for remote in remotes {
            for local in locals {
                assert!(runs.push(&run(remote, local, &mut { *b"two packets" })));
            }
        }
        assert_eq!(runs.count(), 9);
        let mut arrived = runs.iter_mut();
        for remote in remotes {
            for local in locals {
                let mut bytes = *b"two packets";
                let (sent, arrived) = (run(remote, local, &mut bytes), arrived.next().unwrap());
                assert_eq!((arrived.path, arrived.ecn), (sent.path, sent.ecn));
                assert_eq!((arrived.segment_size, &*arrived.bytes), (7, &*sent.bytes));
            }
        }
        assert!(arrived.next().is_none());
        drop(arrived);
        runs.clear();
        assert_eq!((runs.count(), runs.iter_mut().count()), (0, 0));
    }

    #[test]
    fn a_truncated_message_yields_its_complete_runs() {
        let mut runs = Runs::default();
        for remote in ["192.0.2.1:443", "[2001:db8::1]:1"] {
            assert!(runs.push(&run(remote, None, &mut [3; 100])));
        }
        let message = runs.message().to_vec();
        let second = {
            let mut first = Runs::default();
            first.push(&run("192.0.2.1:443", None, &mut [3; 100]));
            first.message().len()
        };
        for len in 0..=message.len() {
            let whole = usize::from(len >= second) + usize::from(len == message.len());
            assert_eq!(parse(&mut message.clone()[..len]).count(), whole, "{len}");
        }
    }

    #[test]
    fn the_largest_bundle_fits_only_an_empty_message() {
        let mut runs = Runs::default();
        let ip = "2001:db8::9";
        let mut largest = vec![3; usize::from(u16::MAX)];
        let run = run("[fe80::1%7]:65535", Some(ip), &mut largest);
        assert!(runs.push(&run));
        assert!(!runs.push(&run));
        assert_eq!(runs.iter_mut().next().unwrap().bytes.len(), 65_535);
        assert!(runs.message().len() <= LONGEST);
    }
}
