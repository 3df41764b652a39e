//! Wycheproof's AEAD cases, through every kernel. They have associated data of any length, even
//! none, which no packet has: so they run below the packet interface, on jobs.

use serde_json::Value;

use super::{Job, Kernel, kernels_available};
use crate::material::KeyMaterial;
use crate::span::TAG_LEN;
use crate::suite::Suite;

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
        .collect()
}

fn check(kernel: &Kernel, test: &Value) {
    let (aad, msg) = (hex(&test["aad"]), hex(&test["msg"]));
    let sealed = [hex(&test["aad"]), hex(&test["ct"]), hex(&test["tag"])].concat();
    let valid = test["result"] == "valid";
    let id = &test["tcId"];

    // The number 0 leaves the IV as it is.
    let mut opened = sealed.clone();
    let mut job = [Job::new(&mut opened, aad.len(), 0, &[]).unwrap()];
    assert_eq!(kernel.open(&mut job) == 1, valid, "{id}");
    if valid {
        assert_eq!(opened[aad.len()..aad.len() + msg.len()], msg, "{id}");
        for source_len in [0, msg.len() / 2, msg.len()] {
            let (head, source) = msg.split_at(msg.len() - source_len);
            let room = vec![0; source_len + TAG_LEN];
            let mut packet = [aad.as_slice(), head, room.as_slice()].concat();
            kernel.seal_alone(&mut [Job::new(&mut packet, aad.len(), 0, source).unwrap()]);
            assert_eq!(packet, sealed, "{id}");
        }
    }
}

/// Runs the cases of a file that have a 12-byte nonce, a 16-byte tag and a key of one of the
/// suites.
fn run(text: &str, suites: &[Suite]) -> usize {
    let file: Value = serde_json::from_str(text).unwrap();
    let mut ran = 0;
    for group in file["testGroups"].as_array().unwrap() {
        let suite = suites
            .iter()
            .find(|suite| group["keySize"] == 8 * suite.key_len());
        let (Some(suite), true, true) = (suite, group["ivSize"] == 96, group["tagSize"] == 128)
        else {
            continue;
        };
        for test in group["tests"].as_array().unwrap() {
            let iv = hex(&test["iv"]).try_into().unwrap();
            let material = KeyMaterial::new(*suite, &hex(&test["key"]), &iv).unwrap();
            let kernels = kernels_available().into_iter();
            for kernel in kernels.filter_map(|kind| Kernel::expand(&material, kind)) {
                check(&kernel, test);
            }
            ran += 1;
        }
    }
    ran
}

#[test]
fn aes_gcm() {
    let text = include_str!("../../tests/vectors/wycheproof/aes_gcm_test.json");
    let ran = run(text, &[Suite::Aes128Gcm, Suite::Aes256Gcm]);
    assert_eq!(
        ran, 133,
        "of 316: the others have AES-192 keys or nonces of other lengths"
    );
}

#[test]
fn chacha20_poly1305() {
    let text = include_str!("../../tests/vectors/wycheproof/chacha20_poly1305_test.json");
    let ran = run(text, &[Suite::ChaCha20Poly1305]);
    assert_eq!(ran, 316, "of 325: the others have nonces of other lengths");
}
