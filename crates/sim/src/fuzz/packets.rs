//! Datagrams, before any key is known.

use std::net::SocketAddr;
use std::sync::Arc;

use squall_core::{Endpoint, EndpointConfig, Route, ServerConfig, Time};
use squall_wire::{ConnectionId, FixedBit, Header, Path, Writer, header, is_long, packet_number};

use crate::certificate::tls;

/// RFC 9000 §8.1.
const AMPLIFICATION: usize = 3;

/// Reads the input except for its first byte as a datagram: by its packets' headers, and as an
/// endpoint does.
///
/// # Panics
/// A property does not hold.
pub fn packets(input: &[u8]) {
    let Some((&shape, datagram)) = input.split_first() else {
        return;
    };
    let cid_len = usize::from(shape & 31).min(ConnectionId::MAX_LEN);
    for fixed_bit in [FixedBit::Required, FixedBit::Greased] {
        walk(datagram, cid_len, fixed_bit);
    }
    numbers(datagram);
    if let Ok(segment_size) = u16::try_from(datagram.len().div_ceil(1 + usize::from(shape >> 5))) {
        route(datagram, segment_size);
    }
}

/// The packets of a datagram, one after the other.
fn walk(datagram: &[u8], cid_len: usize, fixed_bit: FixedBit) {
    let mut rest = datagram;
    while let Ok(read) = header::parse_with(rest, cid_len, fixed_bit) {
        let destination = header::destination(rest, cid_len);
        let (dcid, len, least) = match &read {
            Header::Long {
                dcid,
                len,
                pn_offset,
                ..
            }
            | Header::Short {
                dcid,
                len,
                pn_offset,
            } => (dcid.as_slice(), *len, pn_offset + 1),
            Header::Retry { dcid, .. } => (dcid.as_slice(), rest.len(), 1),
            Header::VersionNegotiation { dcid, .. } | Header::Unsupported { dcid, .. } => {
                (*dcid, rest.len(), 1)
            }
        };
        assert_eq!(destination, Some(dcid), "a router sees the same");
        assert!((least..=rest.len()).contains(&len), "{read:?}");
        write_again(&read, rest, cid_len);
        rest = &rest[len..];
    }
}

/// What was read can be written, and reads as before.
fn write_again(read: &Header<'_>, packet: &[u8], cid_len: usize) {
    let mut bytes = vec![0; packet.len() + 64];
    let mut w = Writer::new(&mut bytes);
    let len = match *read {
        Header::Long {
            ty,
            version,
            dcid,
            scid,
            token,
            pn_offset,
            len,
        } => {
            // Packets are always written with two bytes for the length.
            let length = len - pn_offset;
            if length >= 1 << 14 {
                return;
            }
            let field = header::write_long(&mut w, ty, version, &dcid, &scid, token, 0, 1);
            let end = w.len() - 1 + length;
            header::patch_length(&mut bytes, field, length);
            end
        }
        Header::Short { dcid, len, .. } => {
            header::write_short(&mut w, &dcid, false, false, 0, 1);
            len
        }
        Header::Retry {
            version,
            dcid,
            scid,
            token,
            tag,
            ..
        } => {
            header::write_retry(&mut w, version, &dcid, &scid, token);
            w.bytes(&tag);
            w.len()
        }
        Header::VersionNegotiation {
            dcid,
            scid,
            versions,
        } => {
            let versions: Vec<u32> = (versions.as_chunks().0.iter())
                .map(|version| u32::from_be_bytes(*version))
                .collect();
            header::write_version_negotiation(&mut w, dcid, scid, &versions, 0);
            w.len()
        }
        // These are never written.
        Header::Unsupported { .. } => return,
    };
    let again = header::parse(&bytes[..len], cid_len);
    let again = again.expect("what was written is a packet");
    match (read, again) {
        // The Length field may have had another size, and so the number another offset.
        (
            Header::Long {
                ty,
                version,
                dcid,
                scid,
                token,
                pn_offset,
                len,
            },
            Header::Long {
                ty: ty_again,
                version: version_again,
                dcid: dcid_again,
                scid: scid_again,
                token: token_again,
                pn_offset: pn_offset_again,
                len: len_again,
            },
        ) => {
            assert_eq!((*ty, *version), (ty_again, version_again));
            assert_eq!((*dcid, *scid), (dcid_again, scid_again));
            assert_eq!(
                (*token, len - pn_offset),
                (token_again, len_again - pn_offset_again)
            );
        }
        (
            Header::Retry { token, tag, .. },
            Header::Retry {
                token: token_again,
                tag: tag_again,
                ..
            },
        ) => assert_eq!((*token, *tag), (token_again, tag_again)),
        (read, again) => assert_eq!(*read, again),
    }
}

/// RFC 9000 A.3: of the numbers that end in the sent bits, the one nearest to the next.
fn numbers(datagram: &[u8]) {
    let Some((largest, sent)) = datagram.split_first_chunk::<8>() else {
        return;
    };
    let Some(sent) = sent.first_chunk::<4>() else {
        return;
    };
    let largest = u64::from_be_bytes(*largest) >> 2;
    for pn_len in 1..=4 {
        let window = 1 << (8 * pn_len);
        let truncated = u64::from(u32::from_be_bytes(*sent)) % window;
        let number = packet_number::expand(truncated, pn_len, Some(largest));
        assert_eq!(number % window, truncated);
        assert!(number < 1 << 62, "RFC 9000 §12.3");
        let distance = number.abs_diff(largest + 1);
        let at_an_end = number < window || number + window >= 1 << 62;
        assert!(
            distance <= window / 2 || at_an_end,
            "{number} after {largest}"
        );
    }
}

/// An endpoint routes every byte, and sends no more in response than it may.
fn route(datagrams: &[u8], segment_size: u16) {
    let path = Path {
        remote: SocketAddr::from(([10, 0, 0, 9], 999)),
        local: None,
    };
    let server = ServerConfig::new(tls().1);
    let config = EndpointConfig::new([1; 32]);
    let mut endpoint = Endpoint::new(config, Some(Arc::new(server)), [2; 32]);
    let now = Time::from_nanos(1_000_000_000);
    let mut rest = datagrams;
    while !rest.is_empty() {
        let run = endpoint.route(now, path, rest, segment_size);
        assert!((1..=rest.len()).contains(&run.len), "{run:?}");
        let (front, behind) = rest.split_at(run.len);
        rest = behind;
        match run.to {
            Route::Connection(_) => panic!("there are no connections"),
            Route::Respond(response) if is_long(front[0]) => {
                assert!(response.len() <= AMPLIFICATION * front.len());
            }
            // RFC 9000 §10.3.3
            Route::Respond(reset) => assert!(reset.len() < front.len()),
            Route::Incoming(incoming) => {
                assert!(
                    front.len() >= 1200.min(usize::from(segment_size)),
                    "RFC 9000 §14.1"
                );
                let refusal = endpoint.refuse(incoming);
                assert!(refusal.len() <= AMPLIFICATION * front.len());
            }
            Route::Worker(_) | Route::Predecessor | Route::Discard => {}
        }
    }
    assert_eq!((endpoint.connections(), endpoint.undecided()), (0, 0));
}
