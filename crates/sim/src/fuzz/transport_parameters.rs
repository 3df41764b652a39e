//! Encoded transport parameters.

use squall_wire::{Side, TransportErrorCode, TransportParameters};

/// Reads the input as either end's parameters. What was read is written, and reads as before.
///
/// # Panics
/// A property does not hold.
pub fn transport_parameters(encoded: &[u8]) {
    for sender in [Side::Client, Side::Server] {
        let mut read = match TransportParameters::decode(encoded, sender) {
            Ok(read) => read,
            Err(error) => {
                assert_eq!(error.code, TransportErrorCode::TRANSPORT_PARAMETER_ERROR);
                continue;
            }
        };
        // Not all of a long list of versions are kept; a client's list without the chosen one is an
        // error (RFC 9368 §4).
        (read.version_information).take_if(|versions| {
            sender == Side::Client && !versions.available().contains(&versions.chosen)
        });
        for grease in [None, Some((27 + 31 * 9, 5))] {
            let mut bytes = Vec::new();
            read.encode(&mut bytes, grease);
            let again = TransportParameters::decode(&bytes, sender);
            assert_eq!(again.as_ref(), Ok(&read), "written and read again");
        }
    }
}
