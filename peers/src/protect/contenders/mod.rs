//! The contenders, and how each is called.
//!
//! ```text
//!   Contender   all packets of a run, either way, with or without header protection
//!     ├── squall       groups of spans
//!     └── OneByOne<P>  a loop over packets, the same for every Peer:
//!           ├── ring_like      ring, aws-lc-rs
//!           ├── rustcrypto
//!           ├── graviola
//!           └── shared_object  BoringSSL, OpenSSL, ipsec-mb
//! ```

mod graviola;
mod ring_like;
mod rustcrypto;
mod shared_object;
mod squall;

use squall_protect::{SAMPLE_LEN, TAG_LEN};

use super::args::{Direction, Name, Suite};
use super::packets::{HEADER_LEN, PN_OFFSET, Packets, SAMPLE_OFFSET};

/// What to do with packets.
#[derive(Copy, Clone)]
pub(crate) struct Work {
    pub(crate) direction: Direction,
    pub(crate) header_protection: bool,
}

/// One side's expanded keys of a suite.
pub(crate) trait Contender {
    /// Processes all packets in place, in groups of `batch` if the library supports groups; false
    /// if a packet was refused.
    fn work(&mut self, work: Work, packets: &mut Packets, batch: usize) -> bool;
}

/// A library that takes one packet per call.
trait Peer {
    /// Seals in place; the packet ends with room for the tag.
    fn seal(&mut self, packet: &mut [u8], number: u64) -> bool;

    /// Opens in place; the packet ends with its tag.
    fn open(&mut self, packet: &mut [u8], number: u64) -> bool;

    /// The header-protection mask for a sample (RFC 9001 §5.4.1).
    fn mask(&mut self, sample: &[u8; SAMPLE_LEN]) -> Option<[u8; 5]>;
}

/// A library that is called packet by packet, as its users do.
struct OneByOne<P>(P);

impl<P: Peer> Contender for OneByOne<P> {
    fn work(&mut self, work: Work, packets: &mut Packets, _batch: usize) -> bool {
        let each = packets.buf.chunks_exact_mut(packets.len);
        let peer = &mut self.0;
        let mut done = true;
        match (work.direction, work.header_protection) {
            (Direction::Seal, false) => {
                for (packet, span) in each.zip(&packets.spans) {
                    done &= peer.seal(packet, span.packet_number);
                }
            }
            (Direction::Seal, true) => {
                for (packet, span) in each.zip(&packets.spans) {
                    done &= peer.seal(packet, span.packet_number);
                    done &= protect(peer, packet);
                }
            }
            (Direction::Open, false) => {
                for (packet, span) in each.zip(&packets.spans) {
                    done &= peer.open(packet, span.packet_number);
                }
            }
            (Direction::Open, true) => {
                for packet in each {
                    let number = unprotect(peer, packet);
                    done &= number.is_some_and(|number| peer.open(packet, number));
                }
            }
        }
        done
    }
}

fn mask(peer: &mut impl Peer, packet: &[u8]) -> Option<[u8; 5]> {
    let sample = packet[SAMPLE_OFFSET..].first_chunk::<SAMPLE_LEN>()?;
    peer.mask(sample)
}

/// A mask's bytes for the packet number; if that is short, the last bytes do not apply.
fn number_mask(mask: [u8; 5], first: u8) -> u32 {
    let number_len = u32::from(first & 3) + 1;
    u32::from_be_bytes([mask[1], mask[2], mask[3], mask[4]]) & (u32::MAX << (8 * (4 - number_len)))
}

fn number_bytes(packet: &mut [u8]) -> Option<&mut [u8; 4]> {
    packet[PN_OFFSET..].first_chunk_mut::<4>()
}

/// Applies header protection to a short header.
fn protect(peer: &mut impl Peer, packet: &mut [u8]) -> bool {
    let Some(mask) = mask(peer, packet) else {
        return false;
    };
    let over_number = number_mask(mask, packet[0]);
    packet[0] ^= mask[0] & 0x1f;
    let Some(bytes) = number_bytes(packet) else {
        return false;
    };
    *bytes = (u32::from_be_bytes(*bytes) ^ over_number).to_be_bytes();
    true
}

/// Removes header protection from a short header and returns the number.
fn unprotect(peer: &mut impl Peer, packet: &mut [u8]) -> Option<u64> {
    let mask = mask(peer, packet)?;
    packet[0] ^= mask[0] & 0x1f;
    let first = packet[0];
    let bytes = number_bytes(packet)?;
    let number = u32::from_be_bytes(*bytes) ^ number_mask(mask, first);
    *bytes = number.to_be_bytes();
    Some(u64::from(number >> (8 * (3 - u32::from(first & 3)))))
}

/// Header, payload and tag of a packet.
fn parts(packet: &mut [u8]) -> Option<(&[u8], &mut [u8], &mut [u8; TAG_LEN])> {
    let (header, rest) = packet.split_at_mut_checked(HEADER_LEN)?;
    let (payload, tag) = rest.split_last_chunk_mut()?;
    Some((header, payload, tag))
}

/// Expands keys; `None` if the library lacks the suite.
type Expand = Box<dyn Fn(Suite) -> Option<Box<dyn Contender>>>;

/// A contender in a run.
pub(crate) struct Entrant {
    pub(crate) name: Name,
    /// What it is, with its version.
    pub(crate) version: String,
    /// Which of its code it uses on this CPU, as far as is known.
    pub(crate) kernel: String,
    pub(crate) expand: Expand,
}

/// The contenders, and those that cannot take part.
pub(crate) struct Field {
    pub(crate) entrants: Vec<Entrant>,
    pub(crate) left_out: Vec<(Name, String)>,
}

/// Enters all named contenders.
pub(crate) fn enter(names: &[Name]) -> Field {
    let mut field = Field {
        entrants: Vec::new(),
        left_out: Vec::new(),
    };
    for &name in names {
        let entrant = match name {
            Name::Squall => Ok(squall::entrant()),
            Name::BoringSsl => {
                shared_object::entrant(name, "squall-peers-boringssl", Some("boring-sys"))
            }
            Name::OpenSsl => {
                shared_object::entrant(name, "squall-peers-openssl", Some("openssl-src"))
            }
            Name::AwsLcRs => Ok(ring_like::aws_lc_rs()),
            Name::Ring => Ok(ring_like::ring()),
            Name::RustCrypto => Ok(rustcrypto::entrant()),
            Name::Graviola => graviola::entrant(),
            Name::IpsecMb => shared_object::entrant(name, "squall-peers-ipsec-mb", None),
        };
        match entrant {
            Ok(entrant) => field.entrants.push(entrant),
            Err(reason) => field.left_out.push((name, reason)),
        }
    }
    field
}

/// The text for a library that does not report its kernel.
const UNTOLD: &str = "chosen by CPU features; the library does not report which";

/// The version of a package that this program was built with.
fn locked_version(package: &str) -> &'static str {
    let mut lines = include_str!("../../../Cargo.lock").lines();
    let wanted = format!("name = \"{package}\"");
    (lines.find(|line| *line == wanted))
        .and_then(|_| {
            lines
                .next()?
                .strip_prefix("version = \"")?
                .strip_suffix('"')
        })
        .unwrap_or("of unknown version")
}

/// A package with its version.
fn package(name: &str) -> String {
    format!("{name} {}", locked_version(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer with a fixed mask and no cipher.
    struct Mask([u8; 5]);

    impl Peer for Mask {
        fn seal(&mut self, _packet: &mut [u8], _number: u64) -> bool {
            true
        }

        fn open(&mut self, _packet: &mut [u8], _number: u64) -> bool {
            true
        }

        fn mask(&mut self, _sample: &[u8; SAMPLE_LEN]) -> Option<[u8; 5]> {
            Some(self.0)
        }
    }

    #[test]
    // test: RFC 9001 §5.4.1
    fn the_mask_covers_five_bits_and_the_number() {
        let mut peer = Mask([0xff, 0x11, 0x22, 0x33, 0x44]);
        for (number_len, number) in [(1, 0x80), (2, 0x8081), (3, 0x80_8182), (4, 0x8081_8283)] {
            let mut packet = [0x80_u8; 64];
            packet[0] = 0x40 | (number_len as u8 - 1);
            packet[PN_OFFSET..PN_OFFSET + 4].copy_from_slice(&[0x80, 0x81, 0x82, 0x83]);
            let plain = packet;
            assert!(protect(&mut peer, &mut packet));
            assert_eq!(packet[0], plain[0] ^ 0x1f);
            for (at, mask) in peer.0[1..].iter().enumerate() {
                let mask = if at < number_len { *mask } else { 0 };
                assert_eq!(packet[PN_OFFSET + at], plain[PN_OFFSET + at] ^ mask);
            }
            assert_eq!(packet[1..PN_OFFSET], plain[1..PN_OFFSET]);
            assert_eq!(unprotect(&mut peer, &mut packet), Some(number));
            assert_eq!(packet, plain);
        }
    }

    #[test]
    fn versions_come_from_the_lock_file() {
        assert!(package("ring").starts_with("ring 0."));
        assert!(package("no-such-package").ends_with("of unknown version"));
    }
}
