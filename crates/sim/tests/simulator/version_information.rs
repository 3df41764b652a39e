//! Version information that is not what it should be (RFC 9368 §4): row 32 of the threat table in
//! `SECURITY.md`.

use squall_core::{Event, TransportConfig};
use squall_sim::{Duel, Terms};
use squall_wire::{
    Side, TransportErrorCode, TransportParameters, VERSION_1, VERSION_2, VersionInformation,
};

/// How a handshake in version 1 ends with a peer that declares these versions.
fn ends(victim: Side, versions: &[u32], info: Option<VersionInformation>) -> Option<u64> {
    let mut duel = Duel::new(
        victim,
        Terms {
            transport: TransportConfig::default().versions(versions.to_vec()),
            parameters: Box::new(move |p: &mut TransportParameters| p.version_information = info),
            ..Terms::default()
        },
    );
    duel.shake_hands();
    let closed = duel.closed().map(|code| code.0);
    assert_eq!(closed.is_none(), duel.events.contains(&Event::Connected));
    closed
}

// test: RFC 9368 §4
#[test]
fn the_chosen_version_must_be_the_one_in_use() {
    let both = &[VERSION_1, VERSION_2][..];
    let info = |chosen, available: &[u32]| Some(VersionInformation::new(chosen, available));
    let wrong = Some(TransportErrorCode::VERSION_NEGOTIATION_ERROR.0);
    let malformed = Some(TransportErrorCode::TRANSPORT_PARAMETER_ERROR.0);
    for (victim, versions, info, expected) in [
        // A client in version 1, which has not been changed.
        (Side::Client, both, None, None),
        (Side::Client, both, info(VERSION_1, both), None),
        (Side::Client, both, info(VERSION_1, &[]), None),
        (Side::Client, both, info(VERSION_2, both), wrong),
        (Side::Client, both, info(0x5c5c_5c5c, both), wrong),
        (Side::Client, both, info(0, both), malformed),
        (Side::Client, both, info(VERSION_1, &[0]), malformed),
        // A server that was asked for version 1.
        (Side::Server, both, None, None),
        (Side::Server, both, info(VERSION_1, both), None),
        (Side::Server, both, info(VERSION_1, &[VERSION_1]), None),
        (Side::Server, both, info(VERSION_2, both), wrong),
        (Side::Server, both, info(VERSION_1, &[VERSION_2]), malformed),
        (Side::Server, both, info(VERSION_1, &[]), malformed),
        (
            Side::Server,
            both,
            info(VERSION_1, &[VERSION_1, 0]),
            malformed,
        ),
    ] {
        let ended = ends(victim, versions, info);
        assert_eq!(ended, expected, "{victim:?} {info:x?}");
    }
}
