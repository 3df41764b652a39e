//! The Retry integrity tag (RFC 9001 §5.8, RFC 9369 §3.3.3): an AEAD tag under keys that everybody
//! knows.

use crate::kernel::{Job, Kernel, KernelKind};
use crate::material::KeyMaterial;
use crate::span::TAG_LEN;
use crate::suite::Suite;

/// QUIC version 2 (RFC 9369 §3.1). Every other number gets the constants of version 1.
const VERSION_2: u32 = 0x6b33_43cf;

/// RFC 9001 §5.8
const KEY_V1: [u8; 16] = [
    0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e,
];
const NONCE_V1: [u8; 12] = [
    0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb,
];

/// RFC 9369 §3.3.3
const KEY_V2: [u8; 16] = [
    0x8f, 0xb4, 0xb0, 0x1b, 0x56, 0xac, 0x48, 0xe2, 0x60, 0xfb, 0xcb, 0xce, 0xad, 0x7c, 0xcc, 0x92,
];
const NONCE_V2: [u8; 12] = [
    0xd8, 0x69, 0x69, 0xbc, 0x2d, 0x7c, 0x6d, 0x99, 0x90, 0xef, 0xb0, 0x4a,
];

/// The tag that ends a Retry packet: `retry_without_tag` is the packet up to the tag,
/// `original_dcid` the destination connection id of the Initial packet that it answers.
#[must_use]
pub fn integrity_tag(version: u32, original_dcid: &[u8], retry_without_tag: &[u8]) -> [u8; 16] {
    let (key, nonce) = if version == VERSION_2 {
        (&KEY_V2, &NONCE_V2)
    } else {
        (&KEY_V1, &NONCE_V1)
    };
    // RFC 9001 §5.8: the Retry pseudo-packet is the associated data, the plaintext is empty.
    let mut packet =
        Vec::with_capacity(1 + original_dcid.len() + retry_without_tag.len() + TAG_LEN);
    packet.push(original_dcid.len() as u8);
    packet.extend_from_slice(original_dcid);
    packet.extend_from_slice(retry_without_tag);
    let header_len = packet.len();
    packet.extend_from_slice(&[0; TAG_LEN]);

    let material =
        KeyMaterial::new(Suite::Aes128Gcm, key, nonce).expect("16 bytes are an AES-128 key");
    let kernel = Kernel::expand(&material, KernelKind::Portable).expect("it has every suite");
    let mut job = [Job::new(&mut packet, header_len, 0, &[]).expect("there is room for the tag")];
    kernel.seal_alone(&mut job);
    let [mut job] = job;
    *job.parts().2
}
