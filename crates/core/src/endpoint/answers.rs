//! Limits the stateless answers to unvalidated addresses.
//!
//! Each kind of answer has a budget of its own, so that a flood of one kind does not affect the
//! others, and each source prefix has a share of it, so that one network cannot exhaust a kind for
//! all. Each worker has its own budgets. Retry is not limited: it is smaller than the packet that
//! it answers, and a limit would let a flood of forged Initials lock out all clients.

use std::net::IpAddr;

use aes::Aes128;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};

use crate::prefix::Prefix;
use crate::time::Time;

/// Answers of one kind per second, to all sources together (RFC 9000 §10.3.3, `SECURITY.md` rows 31
/// and 54). The default for stateless resets.
const ANSWERS_PER_SECOND: u32 = 1000;
/// The part of them that one source prefix gets.
const PREFIX_SHARE: u32 = 10;
/// Buckets for prefixes. Two prefixes that collide in one share its part, for a second.
const BUCKETS: usize = 256;
/// IPv4: the smallest prefix that BGP carries, and so the usual reach of a host that can forge
/// addresses only in its own network.
const IPV4_PREFIX_BITS: u8 = 24;
/// IPv6: what a provider assigns to one customer.
const IPV6_PREFIX_BITS: u8 = 56;

const _: () = assert!(BUCKETS == 256, "a bucket is chosen by one byte");

/// The kinds of stateless answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    VersionNegotiation,
    StatelessReset,
    /// A CONNECTION_CLOSE in an Initial packet.
    Refusal,
}

impl Answer {
    const COUNT: usize = Self::Refusal as usize + 1;
}

/// Use of one kind's budget in a second.
#[derive(Clone)]
struct Budget {
    second: u64,
    used: u32,
    by_bucket: [u32; BUCKETS],
}

impl Budget {
    const fn new(second: u64) -> Self {
        Self {
            second,
            used: 0,
            by_bucket: [0; BUCKETS],
        }
    }
}

/// Bounds the stateless answers of an endpoint.
pub(super) struct Answers {
    /// Stateless resets per second.
    resets: u32,
    budgets: Box<[Budget; Answer::COUNT]>,
    /// Chooses buckets, so that a prefix that collides with another cannot be found without knowing
    /// the key.
    key: Aes128,
}

impl Answers {
    pub(super) fn new(key: [u8; 16], resets: u32) -> Self {
        Self {
            resets,
            budgets: Box::new([const { Budget::new(0) }; Answer::COUNT]),
            key: Aes128::new(&Array(key)),
        }
    }

    /// Whether an answer may go to `to`; counts it if so.
    pub(super) fn take(&mut self, now: Time, answer: Answer, to: IpAddr) -> bool {
        let second = now.as_nanos() / 1_000_000_000;
        let bucket = self.bucket(second, to);
        let most = match answer {
            Answer::StatelessReset => self.resets,
            Answer::VersionNegotiation | Answer::Refusal => ANSWERS_PER_SECOND,
        };
        let budget = &mut self.budgets[answer as usize];
        if second != budget.second {
            *budget = Budget::new(second);
        }
        let of_bucket = &mut budget.by_bucket[bucket];
        // Answers denied to a prefix must not count against the others.
        if *of_bucket >= most.div_ceil(PREFIX_SHARE) || budget.used >= most {
            return false;
        }
        *of_bucket += 1;
        budget.used += 1;
        true
    }

    /// The bucket of an address, a different one each second: no address shares one with a flood
    /// for long.
    fn bucket(&self, second: u64, address: IpAddr) -> usize {
        let prefix = Prefix::of(address, IPV4_PREFIX_BITS, IPV6_PREFIX_BITS);
        let mut block = Array(prefix.octets());
        // Within a second different prefixes stay different.
        for (byte, of_second) in block.iter_mut().zip(second.to_le_bytes()) {
            *byte ^= of_second;
        }
        self.key.encrypt_block(&mut block);
        usize::from(block[0])
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn at(second: u64) -> Time {
        Time::from_nanos(second * 1_000_000_000 + 5)
    }

    fn taken(answers: &mut Answers, second: u64, answer: Answer, to: IpAddr, times: u32) -> u32 {
        (0..times)
            .map(|_| u32::from(answers.take(at(second), answer, to)))
            .sum()
    }

    #[test]
    fn each_prefix_has_a_quota_per_kind_and_second() {
        let mut answers = Answers::new([1; 16], ANSWERS_PER_SECOND);
        let share = ANSWERS_PER_SECOND / PREFIX_SHARE;
        let v4 = |third, last| IpAddr::from(Ipv4Addr::new(192, 0, third, last));
        let v6 = |low| IpAddr::from(Ipv6Addr::from((0x2001_0db8_u128 << 96) | low));
        for second in 1..4 {
            // A host that changes its address within the prefix uses the same share.
            let mut same = 0;
            for last in 0..=255 {
                same += taken(&mut answers, second, Answer::Refusal, v4(2, last), 10);
            }
            assert_eq!(same, share);
            let kind = Answer::StatelessReset;
            assert_eq!(taken(&mut answers, second, kind, v4(2, 1), 500), share);
            let mapped = IpAddr::from(Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped());
            assert_eq!(taken(&mut answers, second, kind, mapped, 500), 0);
            let kind = Answer::VersionNegotiation;
            let mut same = taken(&mut answers, second, kind, v6(1), 500);
            same += taken(&mut answers, second, kind, v6(0xff << 64), 500);
            assert_eq!(same, share, "one /56");
        }
    }

    #[test]
    fn resets_have_a_separate_rate() {
        let to = |n: u32| IpAddr::from(Ipv4Addr::from(n << 8));
        for (resets, of_one) in [(0, 0), (1, 1), (25, 3), (2_000, 200)] {
            let mut answers = Answers::new([4; 16], resets);
            let kind = Answer::StatelessReset;
            assert_eq!(taken(&mut answers, 1, kind, to(1), 5_000), of_one);
            let all: u32 = (0..100_000)
                .map(|n| taken(&mut answers, 2, kind, to(n), 1))
                .sum();
            assert_eq!(all, resets);
            let others = taken(&mut answers, 2, Answer::Refusal, to(1), 5_000);
            assert_eq!(others, ANSWERS_PER_SECOND / PREFIX_SHARE);
        }
    }

    #[test]
    fn exhausting_one_kind_leaves_the_others_available() {
        let mut answers = Answers::new([2; 16], ANSWERS_PER_SECOND);
        let mut sent = 0;
        for n in 0..100_000_u32 {
            let from = IpAddr::from(Ipv4Addr::from(n << 8));
            sent += u32::from(answers.take(at(7), Answer::StatelessReset, from));
        }
        assert_eq!(sent, ANSWERS_PER_SECOND);
        let honest = IpAddr::from(Ipv4Addr::new(192, 0, 2, 1));
        assert!(!answers.take(at(7), Answer::StatelessReset, honest));
        assert!(answers.take(at(7), Answer::VersionNegotiation, honest));
        assert!(answers.take(at(7), Answer::Refusal, honest));
        assert!(answers.take(at(8), Answer::StatelessReset, honest));
    }

    #[test]
    fn buckets_are_rehashed_every_second() {
        let answers = Answers::new([3; 16], ANSWERS_PER_SECOND);
        let (flood, honest) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 1));
        let met = (0..10_000)
            .filter(|s| answers.bucket(*s, flood.into()) == answers.bucket(*s, honest.into()))
            .count();
        // 39 are expected.
        assert!((10..100).contains(&met), "{met} of 10,000 seconds");
    }
}
