//! `cargo xtask service`: the systemd unit and the image that run the command elsewhere.
//!
//! ```text
//!   packaging/squall.service   squall takes its arguments   systemd-analyze verify, if installed
//!   packaging/Dockerfile       squall takes its arguments   docker build and run, with a daemon
//! ```
//! Checks that are impossible on this machine are named, but are not failures.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::tree;

const UNIT: &str = "packaging/squall.service";
const DOCKERFILE: &str = "packaging/Dockerfile";

/// Where both expect the command.
const INSTALLED: &str = "/usr/local/bin/squall";

/// The name that the image has on this machine while it is checked.
const IMAGE: &str = "squall-checked";

/// Checks both, up to the first failure.
pub(crate) fn run() -> ExitCode {
    match unit().and_then(|()| image()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("service: {what}");
            ExitCode::FAILURE
        }
    }
}

/// The systemd unit: its command line, and the whole unit as systemd reads it.
fn unit() -> Result<(), String> {
    let text = read(UNIT)?;
    accepts(UNIT, &unit_arguments(&text)?)?;
    if !answers("systemd-analyze", &["--version"]) {
        println!("{UNIT}: systemd-analyze is not installed here, not checked by it");
        return Ok(());
    }
    // systemd also asks whether the command exists, which only an installation can answer.
    let folder = std::env::temp_dir().join(format!("squall-unit-{}", std::process::id()));
    let copy = folder.join("squall.service");
    let text = text.replace(INSTALLED, "/bin/true");
    let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&copy, text));
    let verified = written.map_err(|error| error.to_string()).and_then(|()| {
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(&copy)
            .output()
            .map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // Unknown settings are warnings to systemd, which then ignores them.
        if output.status.success() && !said.contains("squall.service") {
            Ok(())
        } else {
            Err(format!("systemd-analyze verify {UNIT}:\n{said}"))
        }
    });
    // A leftover copy does no harm: another run uses another name.
    let _ = fs::remove_dir_all(&folder);
    verified.inspect(|()| println!("{UNIT}: verified by systemd-analyze"))
}

/// The image: its command line, then build and run.
fn image() -> Result<(), String> {
    let text = read(DOCKERFILE)?;
    accepts(DOCKERFILE, &image_arguments(&text)?)?;
    if !answers("docker", &["version"]) {
        println!("{DOCKERFILE}: no docker with a daemon here, not built");
        return Ok(());
    }
    let build = ["build", "--file", DOCKERFILE, "--tag", IMAGE, "."];
    succeeds("docker", &build)?;
    succeeds("docker", &["run", "--rm", IMAGE, "--version"])?;
    println!("{DOCKERFILE}: built, and the command runs in it");
    Ok(())
}

/// The arguments that a unit's `ExecStart` hands to the command.
fn unit_arguments(unit: &str) -> Result<Vec<String>, String> {
    let lines: Vec<&str> = unit
        .lines()
        .filter_map(|line| line.strip_prefix("ExecStart="))
        .collect();
    let [line] = lines[..] else {
        return Err(format!("{UNIT} has {} lines ExecStart=", lines.len()));
    };
    let mut words = line.split_whitespace();
    if words.next() != Some(INSTALLED) {
        return Err(format!("{UNIT} does not start {INSTALLED}"));
    }
    Ok(words.map(str::to_owned).collect())
}

/// The arguments that an image's `CMD` hands to its `ENTRYPOINT`, the command.
fn image_arguments(dockerfile: &str) -> Result<Vec<String>, String> {
    if list(dockerfile, "ENTRYPOINT") != Some(vec![INSTALLED.to_owned()]) {
        return Err(format!("{DOCKERFILE}: ENTRYPOINT is not {INSTALLED}"));
    }
    list(dockerfile, "CMD").ok_or_else(|| format!("{DOCKERFILE} has no CMD with a list"))
}

/// The words of the last line `INSTRUCTION ["word", …]`. None of ours holds quotes or commas.
fn list(dockerfile: &str, instruction: &str) -> Option<Vec<String>> {
    let words = dockerfile.lines().rev().find_map(|line| {
        let rest = line.strip_prefix(instruction)?.trim();
        rest.strip_prefix('[')?.strip_suffix(']')
    })?;
    let words = words
        .split(',')
        .map(|word| word.trim().trim_matches('"').to_owned());
    Some(words.collect())
}

/// Whether the command takes these arguments: followed by `--help`, it parses all of them and does
/// nothing else.
fn accepts(path: &str, arguments: &[String]) -> Result<(), String> {
    let output = Command::new(env!("CARGO"))
        .current_dir(tree::root())
        .args(["run", "--quiet", "--locked", "--package", "squall-cli"])
        .arg("--")
        .args(arguments)
        .arg("--help")
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{path}: squall refuses {arguments:?}:\n{said}"))
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(Path::new(&tree::root()).join(path))
        .map_err(|error| format!("{path}: {error}"))
}

/// Whether a tool is installed and works.
fn answers(tool: &str, arguments: &[&str]) -> bool {
    let status = Command::new(tool)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

fn succeeds(tool: &str, arguments: &[&str]) -> Result<(), String> {
    let status = Command::new(tool)
        .current_dir(tree::root())
        .args(arguments)
        .status();
    if status.is_ok_and(|status| status.success()) {
        Ok(())
    } else {
        Err(format!("{tool} {} failed", arguments.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_a_unit_follow_the_command() {
        let unit =
            "[Service]\n# ExecStart=/bin/false\nExecStart=/usr/local/bin/squall perf server\n";
        assert_eq!(
            unit_arguments(unit),
            Ok(vec!["perf".into(), "server".into()])
        );
        assert!(unit_arguments("ExecStart=/usr/bin/squall perf").is_err());
        assert!(unit_arguments("[Service]").is_err());
        // The second one would be an error to systemd, or the only one that counts.
        assert!(unit_arguments(&format!("{unit}{unit}")).is_err());
    }

    #[test]
    fn the_arguments_of_an_image_are_those_of_its_last_cmd() {
        let file =
            "CMD [\"old\"]\nENTRYPOINT [\"/usr/local/bin/squall\"]\nCMD [\"perf\", \"server\"]\n";
        assert_eq!(
            image_arguments(file),
            Ok(vec!["perf".into(), "server".into()])
        );
        assert!(image_arguments("ENTRYPOINT [\"squall\"]\nCMD [\"perf\"]").is_err());
        assert!(image_arguments("ENTRYPOINT [\"/usr/local/bin/squall\"]").is_err());
    }
}
