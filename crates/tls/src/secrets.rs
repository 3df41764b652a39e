//! How secrets leave rustls: through its key log.
//!
//! rustls derives a traffic secret for each direction of each level (RFC 9001 §5.1), shows it to
//! the key log of its configuration, and expands it into keys with the labels of the QUIC version
//! that the session was made for. But the version may still change in the middle of a handshake
//! (compatible version negotiation, RFC 9368 §2.3), and with it the labels (RFC 9369 §3.3.2). So
//! squall takes the secrets and leaves the keys:
//!
//! ```text
//!  rustls: secret ─▶ KeyLog::log ─▶ Tap ─▶ schedule.rs: keys of whatever version
//!                 │                  └──▶ the application's own key log
//!                 └▶ keys of rustls, never used
//! ```
//! Each session has a [`Tap`] of its own, so no secret can reach another session, and any rustls
//! configuration can be used, whatever its crypto provider.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::KeyLog;
use rustls::crypto::tls13::OkmBlock;

/// The secrets of a session that are passed to a key log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecretKind {
    ClientEarly,
    ClientHandshake,
    ServerHandshake,
    ClientTraffic,
    ServerTraffic,
    Exporter,
}

/// Their labels in a key log, the format of `SSLKEYLOGFILE`.
const LABELS: [&str; 6] = [
    "CLIENT_EARLY_TRAFFIC_SECRET",
    "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
    "SERVER_HANDSHAKE_TRAFFIC_SECRET",
    "CLIENT_TRAFFIC_SECRET_0",
    "SERVER_TRAFFIC_SECRET_0",
    "EXPORTER_SECRET",
];

/// A key log that keeps the secrets that one session logs until the session takes them.
pub(crate) struct Tap {
    /// The configuration's own, which receives everything as before.
    next: Arc<dyn KeyLog>,
    /// By [`SecretKind`]. rustls wipes them when they are dropped.
    secrets: Mutex<[Option<OkmBlock>; LABELS.len()]>,
}

impl Tap {
    pub(crate) fn new(next: Arc<dyn KeyLog>) -> Arc<Self> {
        Arc::new(Self {
            next,
            secrets: Mutex::default(),
        })
    }

    /// Takes out a secret; `None` if rustls has not derived it, or it was already taken.
    pub(crate) fn take(&self, kind: SecretKind) -> Option<OkmBlock> {
        self.lock()[kind as usize].take()
    }

    /// A copy of a secret that may be needed again.
    pub(crate) fn copy(&self, kind: SecretKind) -> Option<OkmBlock> {
        self.lock()[kind as usize].clone()
    }

    fn lock(&self) -> MutexGuard<'_, [Option<OkmBlock>; LABELS.len()]> {
        // A panic leaves the data intact: secrets are stored by one assignment.
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyLog for Tap {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        if let Some(kind) = LABELS.iter().position(|known| *known == label)
            && secret.len() <= OkmBlock::MAX_LEN
        {
            self.lock()[kind] = Some(OkmBlock::new(secret));
        }
        if self.next.will_log(label) {
            self.next.log(label, client_random, secret);
        }
    }

    fn will_log(&self, label: &str) -> bool {
        LABELS.contains(&label) || self.next.will_log(label)
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Recorder(Mutex<Vec<String>>);

    impl KeyLog for Recorder {
        fn log(&self, label: &str, _: &[u8], _: &[u8]) {
            self.0.lock().unwrap().push(label.to_owned());
        }

        fn will_log(&self, label: &str) -> bool {
            label != LABELS[1]
        }
    }

    #[test]
    fn a_secret_is_taken_once_and_forwarded_to_the_next_key_log() {
        let next = Arc::new(Recorder::default());
        let tap = Tap::new(Arc::<Recorder>::clone(&next));
        for (label, secret) in [(LABELS[0], 1), (LABELS[1], 2), (LABELS[5], 3), ("OTHER", 4)] {
            assert!(tap.will_log(label));
            tap.log(label, &[0; 32], &[secret; 48]);
        }
        assert_eq!(*next.0.lock().unwrap(), [LABELS[0], LABELS[5], "OTHER"]);
        let secret = |kind| tap.take(kind).map(|okm| okm.as_ref().to_vec());
        assert_eq!(secret(SecretKind::ClientEarly), Some(vec![1; 48]));
        assert_eq!(secret(SecretKind::ClientEarly), None);
        assert_eq!(secret(SecretKind::ClientHandshake), Some(vec![2; 48]));
        assert_eq!(secret(SecretKind::ServerHandshake), None);
        for _ in 0..2 {
            let copy = tap.copy(SecretKind::Exporter).unwrap();
            assert_eq!(copy.as_ref(), [3; 48]);
        }
    }

    #[test]
    fn a_secret_longer_than_any_hash_is_ignored() {
        let tap = Tap::new(Arc::new(rustls::NoKeyLog));
        tap.log(LABELS[0], &[0; 32], &[1; OkmBlock::MAX_LEN + 1]);
        assert!(tap.take(SecretKind::ClientEarly).is_none());
    }
}
