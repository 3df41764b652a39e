//! What is known about families of CPUs: whether 512-bit registers pay there.

/// What is known about 512-bit registers on a family of CPUs.
struct Family {
    /// As reported by CPUID, with the family's extended part added.
    vendor: &'static [u8; 12],
    family: u32,
    models: std::ops::RangeInclusive<u32>,
    /// Whether the whole machine gains by them.
    is_wide: bool,
    why: &'static str,
}

/// The families that were measured. A family may lower the clock of the whole machine for 512-bit
/// multiplications (Krasnov, "On the dangers of Intel's frequency scaling", 2017: 10 % fewer
/// requests served, with 2.5 % of the time in such code). All others are measured: see `trial`.
const FAMILIES: &[Family] = &[
    Family {
        vendor: b"AuthenticAMD",
        family: 0x19,
        // Zen 3 has the same family, and no AVX-512.
        models: 0..=0xff,
        is_wide: true,
        why: "Zen 4: 5 % (AES) and 20 % (ChaCha20) faster than 256 bits at 1,450 bytes, and no slow-down of other work",
    },
    Family {
        vendor: b"AuthenticAMD",
        family: 0x1a,
        models: 0..=0xff,
        is_wide: true,
        why: "Zen 5: 1.4 to 1.6 times the speed of 256 bits at 1,450 bytes, and no slow-down of other work",
    },
    Family {
        vendor: b"GenuineIntel",
        family: 0x06,
        // Skylake-SP, Cascade Lake and Cooper Lake share a model.
        models: 0x55..=0x55,
        is_wide: false,
        why: "Skylake-SP to Cooper Lake: the clock of the machine falls for 512-bit multiplications",
    },
    Family {
        vendor: b"GenuineIntel",
        family: 0x06,
        models: 0xa7..=0xa7,
        is_wide: false,
        why: "Rocket Lake: 512 bits are no faster",
    },
    Family {
        vendor: b"GenuineIntel",
        family: 0x06,
        models: 0xcf..=0xcf,
        is_wide: true,
        why: "Emerald Rapids: 1.2 to 1.4 times the speed of 256 bits at 1,450 bytes, and no slow-down of other work",
    },
];

/// A CPU as reported by CPUID: vendor, family with its extended part, model likewise.
pub(super) type CpuFamily = ([u8; 12], u32, u32);

/// Whether to use 512-bit registers on a CPU, and why; `None` if the table does not know it.
pub(super) fn is_wide_family(cpu: Option<CpuFamily>) -> Option<(bool, &'static str)> {
    let (vendor, family, model) = cpu?;
    let row = FAMILIES
        .iter()
        .find(|row| *row.vendor == vendor && row.family == family && row.models.contains(&model))?;
    Some((row.is_wide, row.why))
}

/// Payload bytes below which a packet by itself is faster with ChaCha20-Poly1305 in 256-bit
/// registers, where 512 bits are used for the others.
#[cfg(target_arch = "x86_64")]
pub(super) fn narrow_below(cpu: Option<CpuFamily>) -> usize {
    match cpu {
        // Emerald Rapids: up to 800 bytes the narrow registers take 0.68 to 0.97 of the time, and
        // from 1,000 on 0.95 to 1.12 (decision 57).
        Some((vendor, 0x06, 0xcf)) if vendor == *b"GenuineIntel" => 900,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_classified_by_measurements() {
        let known =
            |vendor: &[u8; 12], family, model| is_wide_family(Some((*vendor, family, model)));
        assert!(known(b"AuthenticAMD", 0x1a, 2).is_some_and(|(is_wide, _)| is_wide));
        assert!(known(b"AuthenticAMD", 0x19, 0x11).is_some_and(|(is_wide, _)| is_wide));
        let (is_wide, why) = known(b"GenuineIntel", 6, 0x55).unwrap();
        assert!(!is_wide && why.contains("clock"));
        let (is_wide, why) = known(b"GenuineIntel", 6, 0xa7).unwrap();
        assert!(!is_wide && why.contains("Rocket Lake"));
        assert!(known(b"GenuineIntel", 6, 0xcf).is_some_and(|(is_wide, _)| is_wide));
        assert!(known(b"GenuineIntel", 6, 0x8f).is_none(), "not measured");
        assert!(is_wide_family(None).is_none());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn short_packets_are_narrow_only_where_that_was_measured() {
        assert_eq!(narrow_below(Some((*b"GenuineIntel", 6, 0xcf))), 900);
        assert_eq!(narrow_below(Some((*b"GenuineIntel", 6, 0x8f))), 0);
        assert_eq!(narrow_below(Some((*b"AuthenticAMD", 6, 0xcf))), 0);
        assert_eq!(narrow_below(None), 0);
    }
}
