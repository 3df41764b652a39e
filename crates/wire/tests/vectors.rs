//! The packets of RFC 9001 and RFC 9369, Appendix A: their headers parse, are written again to the
//! byte, and their payloads hold the frames that the RFCs describe.

use squall_wire::header::{parse, patch_length, write_long, write_retry, write_short};
use squall_wire::{
    ConnectionId, Frame, Frames, Header, LongType, VERSION_1, VERSION_2, Writer, packet_number,
};

struct Vectors {
    version: u32,
    text: &'static str,
}

const ALL: [Vectors; 2] = [
    Vectors {
        version: VERSION_1,
        text: include_str!("vectors/rfc9001.txt"),
    },
    Vectors {
        version: VERSION_2,
        text: include_str!("vectors/rfc9369.txt"),
    },
];

impl Vectors {
    fn get(&self, name: &str) -> Vec<u8> {
        let hex = self
            .text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .unwrap_or_else(|| panic!("no vector {name}"));
        (0..hex.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("vectors are hexadecimal"))
            .collect()
    }
}

fn id(bytes: &[u8]) -> ConnectionId {
    ConnectionId::new(bytes).expect("at most 20 bytes")
}

// test: RFC 9001 A.2, A.3; RFC 9369 A.2, A.3
#[test]
fn initial_packets_parse_and_their_headers_round_trip() {
    for vectors in ALL {
        let client = vectors.get("client_dcid");
        let server = [0xf0, 0x67, 0xa5, 0x50, 0x2a, 0x42, 0x62, 0xb5];
        for (name, dcid, scid, pn, pn_len) in [
            ("client_initial", &client[..], &[][..], 2, 4),
            ("server_initial", &[], &server, 1, 2),
        ] {
            let packet = vectors.get(&format!("{name}.packet"));
            let header = vectors.get(&format!("{name}.header"));
            let pn_offset = header.len() - pn_len;
            let expected = Header::Long {
                ty: LongType::Initial,
                version: vectors.version,
                dcid: id(dcid),
                scid: id(scid),
                token: &[],
                pn_offset,
                len: packet.len(),
            };
            assert_eq!(parse(&packet, 8), Ok(expected));
            // The rest of the datagram does not belong to the packet.
            let coalesced = [&packet[..], &[0x40; 30]].concat();
            assert_eq!(parse(&coalesced, 8), Ok(expected));

            let mut buf = vec![0; 100];
            let mut w = Writer::new(&mut buf);
            let (dcid, scid) = (id(dcid), id(scid));
            let ty = LongType::Initial;
            let at = write_long(&mut w, ty, vectors.version, &dcid, &scid, &[], pn, pn_len);
            let len = w.len();
            assert!(!w.overflow());
            patch_length(&mut buf, at, packet.len() - pn_offset);
            assert_eq!(buf[..len], header);
        }
    }
}

// test: RFC 9001 A.4; RFC 9369 A.4
#[test]
fn retry_packets_round_trip() {
    for vectors in ALL {
        let packet = vectors.get("retry.packet");
        let Ok(Header::Retry {
            version,
            dcid,
            scid,
            token,
            tag,
            without_tag,
        }) = parse(&packet, 0)
        else {
            panic!("not a Retry: {:?}", parse(&packet, 0));
        };
        assert_eq!((version, token), (vectors.version, &b"token"[..]));
        assert_eq!(dcid, ConnectionId::EMPTY);
        assert_eq!(scid, id(&[0xf0, 0x67, 0xa5, 0x50, 0x2a, 0x42, 0x62, 0xb5]));
        assert_eq!([without_tag, &tag].concat(), packet);

        let mut buf = [0; 64];
        let mut w = Writer::new(&mut buf);
        write_retry(&mut w, version, &dcid, &scid, token);
        let len = w.len();
        assert_eq!(&buf[..len], without_tag);
    }
}

// test: RFC 9001 A.5; RFC 9369 A.5
#[test]
fn short_headers_of_the_rfcs_round_trip() {
    for vectors in ALL {
        let packet = vectors.get("short.packet");
        let expected = Header::Short {
            dcid: ConnectionId::EMPTY,
            pn_offset: 1,
            len: packet.len(),
        };
        assert_eq!(parse(&packet, 0), Ok(expected));

        let header = vectors.get("short.header");
        let mut buf = [0; 64];
        let mut w = Writer::new(&mut buf);
        // The packet number of the example, 654360564, in three bytes.
        write_short(&mut w, &ConnectionId::EMPTY, false, false, 654_360_564, 3);
        let len = w.len();
        assert_eq!(buf[..len], header);
        let truncated = 0x00_bff4;
        assert_eq!(
            packet_number::expand(truncated, 3, Some(654_360_560)),
            654_360_564
        );
    }
}

#[test]
fn the_payloads_contain_the_frames_of_the_rfc() {
    for vectors in ALL {
        let payload = vectors.get("client_initial.payload");
        let mut frames = Frames::new(&payload).map(Result::unwrap);
        let Some(Frame::Crypto { offset: 0, data }) = frames.next() else {
            panic!()
        };
        assert_eq!(data.len(), 241);
        assert_eq!(frames.next(), Some(Frame::Padding(payload.len() - 4 - 241)));
        assert_eq!(frames.next(), None);

        let payload = vectors.get("server_initial.payload");
        let mut frames = Frames::new(&payload).map(Result::unwrap);
        let Some(Frame::Ack(ack)) = frames.next() else {
            panic!()
        };
        assert_eq!((ack.largest, ack.delay, ack.ecn), (0, 0, None));
        assert_eq!(ack.ranges().collect::<Vec<_>>(), [0..=0]);
        let Some(Frame::Crypto { offset: 0, data }) = frames.next() else {
            panic!()
        };
        assert_eq!(data.len(), 90);
        assert_eq!(frames.next(), None);

        let payload = vectors.get("short.payload");
        assert!(Frames::new(&payload).eq([Ok(Frame::Ping)]));
    }
}
