//! `cargo xtask cost`: how many instructions the transport takes, and whether a commit takes more.
//!
//! ```text
//!   build    crates/yard/examples/cost, without packet protection
//!     │
//!   count    valgrind --tool=callgrind, a run per scenario ──► instructions per unit of work
//!     │
//!   compare  with the newest rows of docs/figures/cost.csv that the same compiler made
//!     └────► prints the change; fails above 2 %; `--write` appends rows
//! ```
//! An instruction count does not depend on how busy the machine is. It must not depend on the CPU
//! either, so whatever would differ is left out or held constant:
//! - Packets are not protected, since valgrind has neither AVX-512 nor VAES and would count kernels
//!   that no current CPU runs. `squall bench protect` measures those.
//! - Key exchange and signatures are replaced (`crates/yard/examples/cost/tls.rs`), and SHA-256's
//!   compression function, for which valgrind has no instructions either, is taken off the count.
//! - The environment below keeps the C library and the crypto library from choosing by the CPU.
//!
//! Two runs of the same program differ by at most 0.5 %, most by less than 0.1 %, because the
//! standard library's maps have random seeds. Another compiler generates other code. Rust 1.95.0
//! and the nightly 1.97.0 of 2026-05-19 differ by at most 0.3 %, but others may differ more, so
//! only a row of the same compiler can fail the check; others are shown, marked with a `*`.

use crate::{tree, unprotected};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The committed table: a row per scenario and measured commit, the newest at the end.
const TABLE: &str = "docs/figures/cost.csv";
const HEADING: &str = "date,commit,arch,rustc,scenario,connections,unit,instructions";
/// The check fails from this many percent above the table.
const LIMIT_PERCENT: f64 = 2.0;

/// What is measured: scenario, connections, unit of work, and whether `--short` runs it.
const SCENARIOS: [(&str, usize, &str, bool); 10] = [
    ("bulk", 1, "packet", true),
    ("bulk", 1000, "packet", false),
    ("requests", 1, "request", true),
    ("requests", 1000, "request", false),
    ("datagrams", 1, "datagram", true),
    ("datagrams", 1000, "datagram", false),
    ("full", 1, "handshake", true),
    ("full", 1000, "handshake", false),
    ("resumed", 1, "handshake", true),
    ("resumed", 1000, "handshake", false),
];

/// Variables that keep libraries from choosing code by the CPU: squall's own kernels, memcpy and
/// the like in glibc, and aws-lc's code for AVX, AVX2, BMI1, BMI2, ADX and SHA.
const ENVIRONMENT: [(&str, &str); 3] = [
    ("SQUALL_CPU", "portable"),
    (
        "GLIBC_TUNABLES",
        "glibc.cpu.hwcaps=-AVX2,-AVX2_Usable,-ERMS,-AVX,-AVX_Fast_Unaligned_Load",
    ),
    ("OPENSSL_ia32cap", "~0x1000000000000000:~0x20080128"),
];

/// Functions whose own instructions are subtracted: SHA-256's compression in RustCrypto and aws-lc.
const LEFT_OUT: [&str; 2] = ["sha256::compress256", "sha256_block_data_order"];

const USAGE: &str = "usage: cargo xtask cost [--short] [--write]
  --short   five scenarios instead of ten, each once instead of twice
  --write   append the figures to docs/figures/cost.csv";

/// Measures, compares and prints.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let (mut short, mut write) = (false, false);
    for argument in arguments {
        match argument.as_str() {
            "--short" => short = true,
            "--write" => write = true,
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    let found = Command::new("valgrind").arg("--version").output();
    let Ok(valgrind) = found else {
        println!(
            "cost: valgrind is not installed here: not measured (Debian: apt-get install valgrind)"
        );
        return ExitCode::SUCCESS;
    };
    let valgrind = String::from_utf8_lossy(&valgrind.stdout).trim().to_owned();
    match measure(short, write, &valgrind) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(what) => {
            eprintln!("cost: {what}");
            ExitCode::FAILURE
        }
    }
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    date: String,
    commit: String,
    arch: String,
    rustc: String,
    scenario: String,
    connections: usize,
    unit: String,
    instructions: f64,
}

impl Row {
    fn read(line: &str) -> Option<Self> {
        let mut values = line.split(',');
        let mut text = || values.next().map(str::to_owned);
        Some(Self {
            date: text()?,
            commit: text()?,
            arch: text()?,
            rustc: text()?,
            scenario: text()?,
            connections: text()?.parse().ok()?,
            unit: text()?,
            instructions: text()?.parse().ok()?,
        })
    }

    fn line(&self) -> String {
        format!(
            "{},{},{},{},{},{},{},{:.1}",
            self.date,
            self.commit,
            self.arch,
            self.rustc,
            self.scenario,
            self.connections,
            self.unit,
            self.instructions
        )
    }

    /// Whether another row measured the same thing, on the same architecture.
    fn is_like(&self, other: &Self) -> bool {
        (&self.arch, &self.scenario, self.connections)
            == (&other.arch, &other.scenario, other.connections)
    }
}

/// The rows of a table.
fn read_table(text: &str) -> Result<Vec<Row>, String> {
    let lines = text.lines().skip(1).filter(|line| !line.is_empty());
    lines
        .map(|line| Row::read(line).ok_or_else(|| format!("{TABLE}: cannot read {line:?}")))
        .collect()
}

/// A figure compared with the newest like it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Change {
    before: f64,
    percent: f64,
    /// Whether both come from the same compiler.
    is_judged: bool,
}

impl Change {
    /// The change since the newest row that measured the same thing: from the same compiler if
    /// there is one, else from another.
    fn of(row: &Row, table: &[Row]) -> Option<Self> {
        let like = || table.iter().rev().filter(|other| other.is_like(row));
        let same = like().find(|other| other.rustc == row.rustc);
        let before = same.or_else(|| like().next())?.instructions;
        Some(Self {
            before,
            percent: (row.instructions / before - 1.0) * 100.0,
            is_judged: same.is_some(),
        })
    }

    /// Whether the change fails the check.
    fn is_too_much(self) -> bool {
        self.is_judged && self.percent > LIMIT_PERCENT
    }

    fn text(self) -> String {
        let mark = if self.is_judged { "" } else { "*" };
        format!("{:+.2} %{mark}", self.percent)
    }
}

/// Returns whether all scenarios are within the limit.
fn measure(short: bool, write: bool, valgrind: &str) -> Result<bool, String> {
    let path = tree::root().join(TABLE);
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let table = read_table(&committed)?;
    let program = build()?;
    let rustc = compiler()?;
    let (commit, date) = commit()?;
    println!("instructions of both ends per unit, {valgrind}, rustc {rustc}, commit {commit}\n");
    println!(
        "{:<12}{:>12}  {:<10}{:>14}{:>14}{:>11}{:>10}",
        "scenario", "connections", "unit", "table", "now", "change", "spread"
    );
    let mut rows = Vec::new();
    let mut worse = Vec::new();
    let mut has_foreign = false;
    for (scenario, connections, unit, is_short) in SCENARIOS {
        if short && !is_short {
            continue;
        }
        let first = count(&program, scenario, connections)?;
        let second = if short {
            None
        } else {
            Some(count(&program, scenario, connections)?)
        };
        let row = Row {
            date: date.clone(),
            commit: commit.clone(),
            arch: std::env::consts::ARCH.to_owned(),
            rustc: rustc.clone(),
            scenario: scenario.to_owned(),
            connections,
            unit: unit.to_owned(),
            instructions: second.map_or(first, |second| first.min(second)),
        };
        let change = Change::of(&row, &table);
        let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        println!(
            "{scenario:<12}{connections:>12}  {unit:<10}{:>14}{:>14.1}{:>11}{:>10}",
            shown(change.map(|change| format!("{:.1}", change.before))),
            row.instructions,
            shown(change.map(Change::text)),
            shown(second.map(|second| format!("{:.3} %", (second / first - 1.0).abs() * 100.0))),
        );
        if let Some(change) = change.filter(|change| change.is_too_much()) {
            worse.push(format!("{scenario} with {connections}: {}", change.text()));
        }
        has_foreign |= change.is_some_and(|change| !change.is_judged);
        rows.push(row);
    }
    if has_foreign {
        println!("\n*: the row is of another compiler, so the change is not judged");
    }
    if write {
        append(&path, &committed, &rows)?;
    }
    if !worse.is_empty() {
        eprintln!(
            "\ncost: above the limit of {LIMIT_PERCENT} %: {}\n\
             If the change is worth it, append its figures with `cargo xtask cost --write`, and say why in the commit.",
            worse.join("; ")
        );
    }
    Ok(worse.is_empty() || write)
}

fn append(path: &Path, committed: &str, rows: &[Row]) -> Result<(), String> {
    let mut text = if committed.is_empty() {
        format!("{HEADING}\n")
    } else {
        committed.to_owned()
    };
    for row in rows {
        let _ = writeln!(text, "{}", row.line());
    }
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, text))
        .map_err(|error| format!("cannot write {TABLE}: {error}"))?;
    println!("\n{} rows appended to {TABLE}", rows.len());
    Ok(())
}

/// Builds the program without packet protection, in the folder that `bench-core` uses too.
fn build() -> Result<PathBuf, String> {
    let root = tree::root();
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |folder| root.join(folder))
        .join("unprotected");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--quiet"])
        .args(["--package", "squall-yard", "--example", "cost"])
        .current_dir(&root)
        .env("CARGO_TARGET_DIR", &target)
        .env("RUSTFLAGS", format!("--cfg {}", unprotected::name()))
        .status();
    match built {
        Ok(status) if status.success() => Ok(target.join("release/examples/cost")),
        _ => Err("the build failed".to_owned()),
    }
}

/// Instructions per unit of work in one run.
fn count(program: &Path, scenario: &str, connections: usize) -> Result<f64, String> {
    let doing = format!("{scenario} with {connections}");
    let out = program.with_extension(format!("{}.out", std::process::id()));
    let ran = Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind"])
        // Only the measured part of the main thread; set-up is not counted.
        .arg("--toggle-collect=*cost*measured*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args([scenario, &connections.to_string()])
        .env_clear()
        .envs(ENVIRONMENT)
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .output()
        .map_err(|error| format!("{doing}: valgrind does not start: {error}"))?;
    let profile = std::fs::read_to_string(&out);
    let _ = std::fs::remove_file(&out);
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        return Err(format!("{doing}: {}: {}", ran.status, said.trim()));
    }
    let units = String::from_utf8_lossy(&ran.stdout);
    let units: f64 = (units.trim().parse())
        .map_err(|error| format!("{doing}: {error}: the program said {units:?}"))?;
    let profile = profile.map_err(|error| format!("{doing}: no profile: {error}"))?;
    let instructions = own_instructions(&profile);
    if instructions == 0 || units <= 0.0 {
        return Err(format!("{doing}: nothing was counted"));
    }
    Ok(instructions as f64 / units)
}

/// The sum of all functions' own instructions in a callgrind profile, except those left out.
///
/// A function begins with `fn=(id) name`, or `fn=(id)` if the name is known. A line of numbers is a
/// position and its cost; after `calls=` it is the cost of the callee, which is already counted
/// there.
fn own_instructions(profile: &str) -> u64 {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut sum = 0;
    let (mut left_out, mut is_call) = (false, false);
    for line in profile.lines() {
        let function = line
            .strip_prefix("fn=")
            .or_else(|| line.strip_prefix("cfn="));
        if let Some(function) = function {
            let (id, name) = function.split_once(' ').unwrap_or((function, ""));
            if !name.is_empty() {
                names.insert(id, name);
            }
            if line.starts_with("fn=") {
                let name = names.get(id).copied().unwrap_or_default();
                left_out = LEFT_OUT.iter().any(|part| name.contains(part));
            }
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse().ok());
            if !is_call && !left_out {
                sum += cost.unwrap_or(0);
            }
            is_call = false;
        }
    }
    sum
}

/// The compiler's version, such as 1.95.0.
fn compiler() -> Result<String, String> {
    let said = output(Command::new("rustc").arg("--version"))?;
    let version = said.split(' ').nth(1);
    version
        .map(str::to_owned)
        .ok_or_else(|| format!("rustc said {said:?}"))
}

/// The measured commit, with a `+` if the tree has changes, and its date.
fn commit() -> Result<(String, String), String> {
    let git = |arguments: &[&str]| {
        output(
            Command::new("git")
                .args(arguments)
                .current_dir(tree::root()),
        )
    };
    let head = git(&["show", "--no-patch", "--format=%h %cs", "HEAD"])?;
    let (commit, date) = head.split_once(' ').unwrap_or((&head, ""));
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let mark = if changes.is_empty() { "" } else { "+" };
    Ok((format!("{commit}{mark}"), date.to_owned()))
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_instructions_are_summed_without_calls_and_excluded_functions() {
        let profile = "events: Ir\n\
             fl=(1) a.rs\nfn=(1) one\n16 400\n+3 20\n\
             cfn=(2) sha2::sha256::compress256\ncalls=2 50\n* 1000\n-1 5\n\
             fn=(2)\n50 1000\n\
             fn=(1)\nfi=(2) b.rs\n7 100\nfe=(1)\n8 1\n\
             totals: 1526\n";
        assert_eq!(own_instructions(profile), 400 + 20 + 5 + 100 + 1);
    }

    fn row(rustc: &str, scenario: &str, instructions: f64) -> Row {
        Row {
            date: "2026-11-22".to_owned(),
            commit: "abc".to_owned(),
            arch: "x86_64".to_owned(),
            rustc: rustc.to_owned(),
            scenario: scenario.to_owned(),
            connections: 1,
            unit: "packet".to_owned(),
            instructions,
        }
    }

    #[test]
    fn a_row_is_compared_with_the_newest_of_its_kind_and_compiler() {
        let table = [
            row("1.95.0", "bulk", 50.0),
            row("1.95.0", "bulk", 100.0),
            row("1.96.0", "bulk", 200.0),
            row("1.95.0", "full", 300.0),
        ];
        let change = |row: &Row| Change::of(row, &table).expect("a row like it");
        let worse = change(&row("1.95.0", "bulk", 103.0));
        assert!((worse.percent - 3.0).abs() < 1e-9 && worse.is_too_much());
        assert!(!change(&row("1.95.0", "bulk", 101.9)).is_too_much());
        let foreign = change(&row("1.97.0", "full", 900.0));
        assert!((foreign.percent - 200.0).abs() < 1e-9 && !foreign.is_too_much());
        assert_eq!(Change::of(&row("1.95.0", "new", 1.0), &table), None);
    }

    #[test]
    fn rows_round_trip() {
        let row = row("1.95.0", "bulk", 1210.7);
        let text = format!("{HEADING}\n{}\n", row.line());
        assert_eq!(read_table(&text).expect("a table"), [row]);
        assert!(read_table("heading\nno,row").is_err());
        assert_eq!(
            HEADING.split(',').count(),
            text.lines().nth(1).expect("a row").split(',').count()
        );
    }

    #[test]
    fn the_committed_table_can_be_read() {
        let text = std::fs::read_to_string(tree::root().join(TABLE)).expect("the table");
        let rows = read_table(&text).expect("rows");
        for (scenario, connections, unit, _) in SCENARIOS {
            assert!(
                rows.iter().any(|row| row.scenario == scenario
                    && row.connections == connections
                    && row.unit == unit),
                "{scenario} {connections}"
            );
        }
    }
}
