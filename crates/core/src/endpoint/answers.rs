//! How many stateless answers go to addresses that nobody has validated.
//!
//! Each kind of answer has a budget of its own, so that a flood of one kind leaves the others, and
//! each source prefix has a share of it, so that one network cannot use a kind up for all. Each
//! worker has budgets of its own. Retry is not among them: it is smaller than what it answers, and
//! a limit on it would let a flood of forged Initials lock everybody out.

use std::net::IpAddr;

use aes::Aes128;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};

use crate::prefix::Prefix;
use crate::time::Time;

/// Answers of one kind a second, to all sources together (RFC 9000 §10.3.3, `SECURITY.md` rows 31
/// and 54).
pub(crate) const ANSWERS_PER_SECOND: u32 = 1000;
/// The part of them that one source prefix can get.
pub(crate) const ANSWERS_PER_PREFIX: u16 = 100;
/// Buckets that prefixes fall into. Two prefixes that meet in one share its part, for a second.
const BUCKETS: usize = 256;
/// IPv4: the smallest prefix that BGP carries, and so the usual reach of a host that can forge
/// addresses of its own network only.
const IPV4_PREFIX_BITS: u8 = 24;
/// IPv6: what a provider gives to one customer.
const IPV6_PREFIX_BITS: u8 = 56;

const _: () = assert!((ANSWERS_PER_PREFIX as u32) < ANSWERS_PER_SECOND);
const _: () = assert!(BUCKETS == 256, "a bucket is chosen by one byte");

/// What is sent without state.
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

/// What one kind has used in a second.
#[derive(Clone)]
struct Budget {
    second: u64,
    used: u32,
    by_bucket: [u16; BUCKETS],
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
    budgets: Box<[Budget; Answer::COUNT]>,
    /// Chooses buckets, so that only who knows the key can find a prefix that meets another.
    key: Aes128,
}

impl Answers {
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self {
            budgets: Box::new([const { Budget::new(0) }; Answer::COUNT]),
            key: Aes128::new(&Array(key)),
        }
    }

    /// Whether an answer may go to `to`; counts it if so.
    pub(super) fn take(&mut self, now: Time, answer: Answer, to: IpAddr) -> bool {
        let second = now.as_nanos() / 1_000_000_000;
        let bucket = self.bucket(second, to);
        let budget = &mut self.budgets[answer as usize];
        if second != budget.second {
            *budget = Budget::new(second);
        }
        let of_bucket = &mut budget.by_bucket[bucket];
        // What a prefix is denied must not count for the others.
        if *of_bucket >= ANSWERS_PER_PREFIX || budget.used >= ANSWERS_PER_SECOND {
            return false;
        }
        *of_bucket += 1;
        budget.used += 1;
        true
    }

    /// The bucket of an address, another one each second: nobody shares one with a flood for long.
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
    fn a_prefix_gets_its_share_of_a_kind_each_second() {
        let mut answers = Answers::new([1; 16]);
        let share = u32::from(ANSWERS_PER_PREFIX);
        let v4 = |third, last| IpAddr::from(Ipv4Addr::new(192, 0, third, last));
        let v6 = |low| IpAddr::from(Ipv6Addr::from((0x2001_0db8_u128 << 96) | low));
        for second in 1..4 {
            // A host changes its address within the prefix: the same share.
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
    fn a_kind_that_is_used_up_leaves_the_others() {
        let mut answers = Answers::new([2; 16]);
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
    fn who_meets_a_flood_in_a_bucket_does_not_meet_it_in_the_next_second() {
        let answers = Answers::new([3; 16]);
        let (flood, honest) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 1));
        let met = (0..10_000)
            .filter(|s| answers.bucket(*s, flood.into()) == answers.bucket(*s, honest.into()))
            .count();
        // 39 are expected.
        assert!((10..100).contains(&met), "{met} of 10,000 seconds");
    }
}
