//! Cipher suites: one for all connections, or several in shares.
//!
//! ```text
//!   "aes128"                     every connection
//!   "aes128=90,chacha20=10"  ─►  order(20): 18 connections and 2, evenly interleaved
//! ```

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use clap::ValueEnum;
use rustls::CipherSuite;
use rustls::crypto::CryptoProvider;

use crate::error::{Failure, Result};

/// A cipher suite of TLS 1.3 (RFC 8446 appendix B.4).
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// TLS_AES_128_GCM_SHA256
    Aes128,
    /// TLS_AES_256_GCM_SHA384
    Aes256,
    /// TLS_CHACHA20_POLY1305_SHA256
    Chacha20,
}

impl Suite {
    /// The name in the RFC.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128 => "TLS_AES_128_GCM_SHA256",
            Self::Aes256 => "TLS_AES_256_GCM_SHA384",
            Self::Chacha20 => "TLS_CHACHA20_POLY1305_SHA256",
        }
    }

    /// A provider that has this suite and no other.
    pub fn alone(self, provider: CryptoProvider) -> Arc<CryptoProvider> {
        Suites::from(self).alone(provider)
    }

    fn number(self) -> CipherSuite {
        match self {
            Self::Aes128 => CipherSuite::TLS13_AES_128_GCM_SHA256,
            Self::Aes256 => CipherSuite::TLS13_AES_256_GCM_SHA384,
            Self::Chacha20 => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        }
    }
}

/// One cipher suite, or several with their shares of the connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suites(Vec<(Suite, u32)>);

/// The largest share, so that its product with a number of connections fits.
const MAX_SHARE: u32 = 1_000_000;

impl Suites {
    /// The named suites, in that order.
    pub fn named(&self) -> impl Iterator<Item = Suite> {
        self.0.iter().map(|&(suite, _)| suite)
    }

    /// Whether there are several.
    pub fn is_mix(&self) -> bool {
        self.0.len() > 1
    }

    /// The suite of the largest share.
    pub fn largest(&self) -> Suite {
        let mut named = self.0.iter().rev();
        let largest = named.by_ref().max_by_key(|(_, share)| *share);
        largest.map_or(Suite::Aes128, |&(suite, _)| suite)
    }

    /// A provider that has these suites and no others.
    pub fn alone(&self, mut provider: CryptoProvider) -> Arc<CryptoProvider> {
        let wanted: Vec<_> = self.named().map(Suite::number).collect();
        (provider.cipher_suites).retain(|suite| wanted.contains(&suite.suite()));
        Arc::new(provider)
    }

    /// The suite of each connection: at least one connection for each suite, the others by largest
    /// remainders, evenly interleaved.
    ///
    /// # Errors
    /// There are fewer connections than suites.
    pub fn order(&self, connections: usize) -> Result<Vec<Suite>> {
        if connections < self.0.len() {
            return Err(Failure::new(format!(
                "--suite names {} suites for {connections} connection(s): each needs at least one connection",
                self.0.len()
            )));
        }
        let mut places: Vec<(f64, Suite)> = Vec::with_capacity(connections);
        for (&(suite, _), own) in self.0.iter().zip(self.counts(connections)) {
            places.extend((0..own).map(|at| ((at as f64 + 0.5) / own as f64, suite)));
        }
        // A stable sort: equal elements stay in the order of the names.
        places.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(places.into_iter().map(|(_, suite)| suite).collect())
    }

    /// How many connections each suite has.
    fn counts(&self, connections: usize) -> Vec<usize> {
        let sum: u64 = self.0.iter().map(|&(_, share)| u64::from(share)).sum();
        let exact = |share: u32| connections as u64 * u64::from(share);
        let mut counts: Vec<usize> = (self.0.iter())
            .map(|&(_, share)| {
                usize::try_from(exact(share) / sum)
                    .unwrap_or(connections)
                    .max(1)
            })
            .collect();
        // What is missing from a suite's named share, times `sum`.
        let missing = |at: usize, counts: &[usize]| {
            i128::from(exact(self.0[at].1)) - counts[at] as i128 * i128::from(sum)
        };
        loop {
            let all: usize = counts.iter().sum();
            let suites = 0..counts.len();
            if all < connections {
                let most = suites.rev().max_by_key(|&at| missing(at, &counts));
                counts[most.unwrap_or(0)] += 1;
            } else if all > connections {
                let above_one = suites.filter(|&at| counts[at] > 1);
                let least = above_one.min_by_key(|&at| missing(at, &counts));
                counts[least.unwrap_or(0)] -= 1;
            } else {
                return counts;
            }
        }
    }
}

impl From<Suite> for Suites {
    fn from(suite: Suite) -> Self {
        Self(vec![(suite, 1)])
    }
}

impl fmt::Display for Suites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (suite, share)) in self.0.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { "," })?;
            f.write_str(suite.name())?;
            if self.is_mix() {
                write!(f, "={share}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Suites {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        const NAMES: &str = "aes128, aes256 or chacha20";
        let named = |name: &str| {
            Suite::from_str(name, true).map_err(|_| {
                format!("{name:?} is no cipher suite: give {NAMES}, or shares such as aes128=90,chacha20=10")
            })
        };
        if !text.contains([',', '=']) {
            return named(text).map(Self::from);
        }
        let mut suites: Vec<(Suite, u32)> = Vec::new();
        for part in text.split(',') {
            let (name, share) = part.split_once('=').unwrap_or((part, ""));
            let suite = named(name)?;
            let share = (share.parse().ok())
                .filter(|share| (1..=MAX_SHARE).contains(share))
                .ok_or_else(|| {
                    format!("{name} needs a share from 1 to {MAX_SHARE}, such as {name}=10")
                })?;
            if suites.iter().any(|(other, _)| *other == suite) {
                return Err(format!("{name} is named twice"));
            }
            suites.push((suite, share));
        }
        Ok(Self(suites))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suites(text: &str) -> Suites {
        text.parse().expect(text)
    }

    fn order(text: &str, connections: usize) -> String {
        let order = suites(text).order(connections).expect("enough connections");
        order
            .iter()
            .map(|suite| suite.name().chars().nth(8).unwrap_or('?'))
            .collect()
    }

    #[test]
    fn a_single_suite_is_the_only_one_offered() {
        for suite in [Suite::Aes128, Suite::Aes256, Suite::Chacha20] {
            let provider = suite.alone(CryptoProvider::clone(&squall::provider()));
            let names: Vec<_> = provider
                .cipher_suites
                .iter()
                .map(|one| format!("{:?}", one.suite()))
                .collect();
            let [name] = names.as_slice() else {
                panic!("{names:?}");
            };
            assert_eq!(name.replace("TLS13_", "TLS_"), suite.name());
        }
    }

    #[test]
    fn shares_of_connections_are_evenly_interleaved() {
        // TLS_AES_1…, TLS_AES_2…, TLS_CHACH…: the ninth letter is the name here.
        assert_eq!(order("aes128=90,chacha20=10", 10), "11111H1111");
        assert_eq!(order("aes128=90,chacha20=10", 20), "11111H1111".repeat(2));
        assert_eq!(order("aes128=1,chacha20=1", 6), "1H1H1H");
        assert_eq!(order("aes128", 3), "111");
        // Every suite has one, however small its share.
        assert_eq!(order("aes128=1000,chacha20=1", 2), "1H");
        assert_eq!(
            order("chacha20=1,aes128=1000,aes256=1", 4)
                .matches('1')
                .count(),
            2
        );
        // What is left goes to the largest remainder: 2.33, 2.33, 2.33 and 4.67, 2.33.
        assert_eq!(
            order("aes128=1,aes256=1,chacha20=1", 7)
                .matches('1')
                .count(),
            3
        );
        assert_eq!(order("aes128=2,aes256=1", 7).matches('1').count(), 5);
        for connections in 3..200 {
            let all = order("aes128=70,aes256=29,chacha20=1", connections);
            assert_eq!(all.len(), connections);
            let least = all.matches('2').count() as f64 / connections as f64;
            assert!(
                (least - 0.29).abs() < 1.0 / connections as f64 + 1e-9,
                "{all}"
            );
        }
    }

    #[test]
    fn every_suite_needs_a_connection() {
        let error = suites("aes128=90,chacha20=10")
            .order(1)
            .expect_err("one connection");
        let error = error.to_string();
        assert!(
            error.contains("2 suites") && error.contains("1 connection"),
            "{error}"
        );
    }

    #[test]
    fn invalid_mixes_are_rejected() {
        for (text, word) in [
            ("aes512", "\"aes512\""),
            ("", "chacha20"),
            ("aes128=90,aes512=10", "\"aes512\""),
            ("aes128=0,chacha20=10", "from 1"),
            ("aes128=90,chacha20", "chacha20=10"),
            ("aes128=-1,chacha20=1", "from 1"),
            ("aes128=90,chacha20=1000001", "1000000"),
            ("aes128=1,AES128=2", "twice"),
            ("aes128=1,", "\"\""),
        ] {
            let error = text.parse::<Suites>().expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_mix_has_a_name_and_a_largest_share() {
        let mix = suites("chacha20=10,aes128=90");
        assert_eq!(
            mix.to_string(),
            "TLS_CHACHA20_POLY1305_SHA256=10,TLS_AES_128_GCM_SHA256=90"
        );
        assert_eq!((mix.is_mix(), mix.largest()), (true, Suite::Aes128));
        let one = suites("Chacha20");
        assert_eq!((one.is_mix(), one.largest()), (false, Suite::Chacha20));
        assert_eq!(one.to_string(), "TLS_CHACHA20_POLY1305_SHA256");
        assert_eq!(
            mix.alone(CryptoProvider::clone(&squall::provider()))
                .cipher_suites
                .len(),
            2
        );
    }
}
