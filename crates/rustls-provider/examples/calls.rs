//! What one packet costs through rustls' interface: nanoseconds per call with the packet protection
//! of ring, aws-lc and squall.
//!
//! ```text
//! cargo run --release -p squall-rustls --example calls
//! ```
//! Each round runs every provider once, so that all of them see the machine in the same state; the
//! medians of the rounds are printed.

use std::hint::black_box;
use std::time::Instant;

use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};
use rustls::quic::{DirectionalKeys, Version};
use rustls::{CipherSuite, Side, SupportedCipherSuite, Tls13CipherSuite};

const ROUNDS: usize = 21;
const CALLS: u64 = 2000;
const HEADER: [u8; 13] = [0x43, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9];

const SUITES: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
];

fn keys(provider: &CryptoProvider, name: CipherSuite) -> DirectionalKeys {
    let suites = provider.cipher_suites.iter();
    let suite = suites
        .filter_map(SupportedCipherSuite::tls13)
        .find(|suite| suite.common.suite == name)
        .and_then(Tls13CipherSuite::quic_suite)
        .expect("a provider for QUIC has the suite");
    suite.keys(b"any", Side::Client, Version::V1).local
}

/// Nanoseconds to encrypt a packet, to decrypt it, and to mask a header.
fn measure(keys: &DirectionalKeys, payload_len: usize) -> [f64; 3] {
    let mut payload = vec![7; payload_len];
    let begun = Instant::now();
    for number in 1000..1000 + CALLS {
        let tag = keys.packet.encrypt_in_place(number, &HEADER, &mut payload);
        black_box(tag.expect("it is short enough"));
    }
    let encrypted = begun.elapsed();
    let tag = keys.packet.encrypt_in_place(1000, &HEADER, &mut payload);
    payload.extend(tag.expect("it is short enough").as_ref());
    let mut received = payload.clone();
    let begun = Instant::now();
    for _ in 0..CALLS {
        received.copy_from_slice(&payload);
        let opened = keys.packet.decrypt_in_place(1000, &HEADER, &mut received);
        black_box(opened.expect("it is authentic"));
    }
    let decrypted = begun.elapsed();
    let (mut first, mut number) = (0x43, [0; 4]);
    let begun = Instant::now();
    for i in 0..CALLS {
        let sample = [i as u8; 16];
        let masked = (keys.header).encrypt_in_place(&sample, &mut first, &mut number);
        masked.expect("the lengths are right");
        // The packet number's length is in the masked bits.
        first |= 3;
    }
    black_box(number);
    [encrypted, decrypted, begun.elapsed()].map(|time| time.as_nanos() as f64 / CALLS as f64)
}

fn main() {
    let providers = [
        ("ring", ring::default_provider()),
        ("aws-lc", aws_lc_rs::default_provider()),
        (
            "squall",
            squall_rustls::wrap_all(aws_lc_rs::default_provider()),
        ),
    ];
    println!("ns a call: encrypt, decrypt (with a copy of the packet), mask a header");
    for suite in SUITES {
        let keys = providers
            .each_ref()
            .map(|(_, provider)| keys(provider, suite));
        for payload_len in [64, 300, 1200, 1452] {
            let mut times: [[Vec<f64>; 3]; 3] = Default::default();
            for _ in 0..ROUNDS {
                for (keys, times) in keys.iter().zip(&mut times) {
                    for (time, times) in measure(keys, payload_len).into_iter().zip(times) {
                        times.push(time);
                    }
                }
            }
            print!("{suite:?} {payload_len} bytes:");
            for ((name, _), times) in providers.iter().zip(times) {
                let [encrypt, decrypt, mask] = times.map(|mut times| {
                    times.sort_by(f64::total_cmp);
                    times[times.len() / 2]
                });
                print!("  {name} {encrypt:.0} {decrypt:.0} {mask:.0}");
            }
            println!();
        }
    }
}
