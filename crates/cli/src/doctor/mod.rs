//! `squall doctor`: what this machine offers, what squall chose for it, and why.
//!
//! ```text
//!   Cpu        vendor, family, what packet protection needs of it
//!   kernels    which there are, which of them run here, for which suites
//!   choices    the one that each suite gets
//!   wish       SQUALL_CPU, and its effect
//!   network    bundles, buffers, devices, queueing discipline, drops, and what each is worth
//! ```
//! One section each, in the report and in JSON.

mod devices;
mod network;

use std::fmt;

use clap::Args;
use serde::Serialize;
use squall_protect::{KernelKind, kernel_choices};
use squall_yard::error::Result;

use self::network::Network;
use crate::kernels::{SUITES, VARIABLE, Wish, able, suite_name};
use crate::output::{print_json, say};

/// Show what squall finds on this machine and what it chooses: CPU, packet-protection kernels, UDP
/// bundles, socket buffers, network devices, queueing discipline and drops, what each is worth, and
/// how to fix it
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Print one JSON object; `schema` is its version
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
}

/// The command.
pub(crate) fn main(args: &Doctor) -> Result<()> {
    let report = Report::new();
    if args.json {
        print_json(&report)
    } else {
        say(report.to_string().trim_end());
        Ok(())
    }
}

/// The processor.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cpu {
    architecture: &'static str,
    /// The name it reports; empty if it reports none.
    vendor: String,
    name: String,
    /// By the vendor's own numbering; absent on an architecture without families.
    #[serde(flatten)]
    family: Option<Family>,
    /// Cores that this process may use.
    cores: usize,
    /// Features that kernels need and that are present.
    features: Vec<&'static str>,
    /// Features that kernels need and that are missing.
    missing: Vec<&'static str>,
}

/// The numbers by which a kernel is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Family {
    pub(crate) family: u32,
    pub(crate) model: u32,
    pub(crate) stepping: u32,
}

impl Cpu {
    /// Queries this machine.
    pub(crate) fn read() -> Self {
        let (features, missing): (Vec<_>, Vec<_>) =
            features().into_iter().partition(|&(_, there)| there);
        let names = |features: Vec<(&'static str, bool)>| {
            features.into_iter().map(|(name, _)| name).collect()
        };
        let (vendor, name, family) = identity();
        Self {
            architecture: std::env::consts::ARCH,
            vendor,
            name,
            family,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            features: names(features),
            missing: names(missing),
        }
    }

    /// In one line.
    pub(crate) fn title(&self) -> String {
        let mut words = vec![if self.name.is_empty() {
            self.architecture.to_owned()
        } else {
            self.name.clone()
        }];
        let mut facts = Vec::new();
        if !self.vendor.is_empty() {
            facts.push(self.vendor.clone());
        }
        if let Some(family) = self.family {
            facts.push(format!("family {} model {}", family.family, family.model));
        }
        if !facts.is_empty() {
            words.push(format!("({})", facts.join(" ")));
        }
        format!(
            "{}, {} core{}",
            words.join(" "),
            self.cores,
            if self.cores == 1 { "" } else { "s" }
        )
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<(&'static str, bool)> {
    use std::is_x86_feature_detected as has;
    vec![
        ("aes", has!("aes")),
        ("pclmulqdq", has!("pclmulqdq")),
        ("avx2", has!("avx2")),
        ("vaes", has!("vaes")),
        ("vpclmulqdq", has!("vpclmulqdq")),
        ("avx512f", has!("avx512f")),
        ("avx512bw", has!("avx512bw")),
        ("avx512vl", has!("avx512vl")),
        ("avx512ifma", has!("avx512ifma")),
    ]
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<(&'static str, bool)> {
    use std::arch::is_aarch64_feature_detected as has;
    vec![
        ("neon", has!("neon")),
        ("aes", has!("aes")),
        ("pmull", has!("pmull")),
    ]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<(&'static str, bool)> {
    Vec::new()
}

/// Vendor, name and family.
#[cfg(target_arch = "x86_64")]
fn identity() -> (String, String, Option<Family>) {
    let cpuid = squall_yard::sys::cpuid;
    let text = |registers: &[u32]| {
        let bytes: Vec<u8> = registers
            .iter()
            .flat_map(|register| register.to_le_bytes())
            .collect();
        let text = String::from_utf8_lossy(&bytes).replace('\0', "");
        text.trim().to_owned()
    };
    let [_, b, c, d] = cpuid(0);
    let vendor = text(&[b, d, c]);
    let mut name = String::new();
    if cpuid(0x8000_0000)[0] >= 0x8000_0004 {
        let words: Vec<u32> = (0x8000_0002..=0x8000_0004).flat_map(cpuid).collect();
        name = text(&words);
    }
    (vendor, name, Some(Family::from_cpuid(cpuid(1)[0])))
}

/// Vendor and name as the kernel shows them; user space has no instruction for it.
#[cfg(not(target_arch = "x86_64"))]
fn identity() -> (String, String, Option<Family>) {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(':'))
            .map(|(_, value)| value.trim().to_owned())
    };
    let part = field("CPU part").map(|part| format!("part {part}"));
    let vendor = field("CPU implementer").map(|code| format!("implementer {code}"));
    (
        vendor.unwrap_or_default(),
        field("model name").or(part).unwrap_or_default(),
        None,
    )
}

#[cfg(any(target_arch = "x86_64", test))]
impl Family {
    /// From leaf 1's EAX: the extended family counts if the basic family is 15, and the extended
    /// model also if it is 6 (Intel's manual volume 2A, CPUID; AMD's volume 3, appendix E).
    fn from_cpuid(eax: u32) -> Self {
        let (basic_family, basic_model) = (eax >> 8 & 0xf, eax >> 4 & 0xf);
        let family = match basic_family {
            15 => 15 + (eax >> 20 & 0xff),
            family => family,
        };
        let model = match basic_family {
            6 | 15 => (eax >> 16 & 0xf) << 4 | basic_model,
            _ => basic_model,
        };
        Self {
            family,
            model,
            stepping: eax & 0xf,
        }
    }
}

/// A kernel on this machine.
#[derive(Debug, Serialize)]
struct KernelRow {
    name: &'static str,
    /// Whether this CPU can run it.
    available: bool,
    /// The suites that it supports, if it is available.
    suites: Vec<&'static str>,
}

/// The kernel chosen for a suite.
#[derive(Debug, Serialize)]
struct Choice {
    suite: &'static str,
    kernel: &'static str,
    reason: String,
}

/// `SQUALL_CPU`.
#[derive(Debug, Serialize)]
struct WishRow {
    /// Absent if it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    followed: bool,
    effect: String,
}

/// Everything that is printed, one field per section.
#[derive(Debug, Serialize)]
struct Report {
    cpu: Cpu,
    kernels: Vec<KernelRow>,
    choices: Vec<Choice>,
    squall_cpu: WishRow,
    cores: Cores,
    network: Network,
}

/// Cores, and what an additional one is worth.
#[derive(Debug, Serialize)]
struct Cores {
    /// Cores that this process may use.
    usable: usize,
    worth: &'static str,
}

impl Cores {
    fn read() -> Self {
        Self {
            usable: squall_yard::sys::allowed_cores().len().max(1),
            worth: "a connection lives on one worker, so one core is one connection's limit; `--workers N` serves several: over loopback 1, 2, 4 and 8 workers carried 27, 48, 88 and 154 Gbit/s, with as many at the client (Xeon, Emerald Rapids, 16 cores)",
        }
    }
}

impl Report {
    fn new() -> Self {
        let able: Vec<_> = SUITES.map(|suite| (suite, able(suite))).into();
        let kernels = KernelKind::ALL.iter().map(|kind| {
            let suites = able.iter().filter(|(_, able)| able.contains(kind));
            let suites: Vec<_> = suites.map(|&(suite, _)| suite_name(suite)).collect();
            KernelRow {
                name: kind.name(),
                available: !suites.is_empty(),
                suites,
            }
        });
        Self {
            cpu: Cpu::read(),
            kernels: kernels.collect(),
            choices: choices(),
            squall_cpu: WishRow::new(&Wish::read()),
            cores: Cores::read(),
            network: Network::read(),
        }
    }
}

/// The kernel of each suite.
fn choices() -> Vec<Choice> {
    let choices = kernel_choices().into_iter().map(|choice| Choice {
        suite: suite_name(choice.suite),
        kernel: choice.kind.name(),
        reason: choice.reason,
    });
    choices.collect()
}

impl WishRow {
    fn new(wish: &Wish) -> Self {
        let (value, followed) = match wish {
            Wish::None => (None, false),
            Wish::Followed(kind) => (Some(kind.name().to_owned()), true),
            Wish::Unavailable(value) | Wish::Unknown(value) => (Some(value.clone()), false),
        };
        let effect = match (wish, wish.complaint()) {
            (_, Some(complaint)) => complaint,
            (Wish::Followed(kind), _) => {
                format!("no kernel faster than {} is used", kind.name())
            }
            _ => "not set: squall chooses".to_owned(),
        };
        Self {
            value,
            followed,
            effect,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[&str]| {
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(" ")
            }
        };
        writeln!(f, "CPU\n  {}", self.cpu.title())?;
        writeln!(f, "  has      {}", list(&self.cpu.features))?;
        writeln!(f, "  lacks    {}", list(&self.cpu.missing))?;
        writeln!(f, "\nKernels of packet protection")?;
        for kernel in &self.kernels {
            let suites = if kernel.available {
                kernel.suites.join(", ")
            } else {
                "not on this CPU".to_owned()
            };
            writeln!(f, "  {:<10}{suites}", kernel.name)?;
        }
        writeln!(f, "\nChosen")?;
        for choice in &self.choices {
            writeln!(
                f,
                "  {:<20}{:<10}{}",
                choice.suite, choice.kernel, choice.reason
            )?;
        }
        write!(f, "\n{VARIABLE}")?;
        match &self.squall_cpu.value {
            Some(value) => writeln!(f, "={value}")?,
            None => writeln!(f)?,
        }
        writeln!(f, "  {}", self.squall_cpu.effect)?;
        writeln!(f, "\nCores\n  {} usable", self.cores.usable)?;
        writeln!(f, "  worth    {}\n", self.cores.worth)?;
        self.network.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_counted_as_the_vendors_do() {
        let of = |eax| {
            let Family {
                family,
                model,
                stepping,
            } = Family::from_cpuid(eax);
            (family, model, stepping)
        };
        // Zen 3 (Milan), Zen 5 (Turin), Skylake-SP, Ice Lake-SP.
        assert_eq!(of(0x00a0_0f11), (25, 1, 1));
        assert_eq!(of(0x00b0_0f21), (26, 2, 1));
        assert_eq!(of(0x0005_0654), (6, 85, 4));
        assert_eq!(of(0x0006_06a6), (6, 106, 6));
    }

    #[test]
    fn the_kernel_chosen_for_each_suite_supports_it() {
        let report = Report::new();
        assert_eq!(report.choices.len(), SUITES.len());
        for choice in &report.choices {
            let kernel = report.kernels.iter().find(|row| row.name == choice.kernel);
            assert!(
                kernel.is_some_and(|row| row.suites.contains(&choice.suite)),
                "{choice:?}"
            );
            assert!(!choice.reason.is_empty());
        }
    }

    #[test]
    fn a_requested_kernel_that_is_not_used_is_reported() {
        let row = WishRow::new(&Wish::Unknown("turbo".to_owned()));
        assert!(!row.followed && row.effect.contains("turbo") && row.effect.contains("ignored"));
        assert_eq!(WishRow::new(&Wish::None).value, None);
    }
}
