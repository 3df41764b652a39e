//! `squall doctor` in its own network, whose device lacks some usual features.
#![cfg(target_os = "linux")]

use std::process::Command;

/// What `doctor` reports about `veth0` in a new network namespace, after this command.
fn veth(setup: &str) -> serde_json::Value {
    // A client that finds no server makes the device carry traffic.
    let script = format!(
        "set -e
         ip link add veth0 type veth peer name veth1
         {setup}
         ip addr add 10.9.9.1/24 dev veth0
         ip link set veth0 up
         ip link set veth1 up
         timeout 0.3 \"$0\" perf client 10.9.9.2 -k -t 0.1 > /dev/null 2>&1 || true
         exec \"$0\" doctor --json"
    );
    let candidates: [&[&str]; 2] = [&["--net"], &["--net", "--user", "--map-root-user"]];
    let makes = |flags: &[&str]| {
        let made = Command::new("unshare").args(flags).arg("true").status();
        made.is_ok_and(|status| status.success())
    };
    let flags = candidates.into_iter().find(|flags| makes(flags));
    let output = Command::new("unshare")
        .args(flags.expect("unshare(1) makes a network namespace"))
        .args(["sh", "-c", &script, env!("CARGO_BIN_EXE_squall")])
        .output()
        .expect("unshare(1) worked a moment ago");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an object");
    let devices = report["network"]["devices"].as_array().expect("devices");
    let found = devices.iter().find(|device| device["name"] == "veth0");
    found.unwrap_or_else(|| panic!("{report}")).clone()
}

#[test]
fn a_device_without_segmentation_is_reported_with_its_cost() {
    if std::env::var_os("SQUALL_WITHOUT_NAMESPACES").is_some() {
        eprintln!("NOT TESTED: this needs a network namespace");
        return;
    }
    let plain = veth("");
    assert_eq!(plain["gro"], false, "as veth comes: {plain}");
    let cost = plain["costs"][0].as_str().expect("a cost");
    assert!(cost.contains("0.58 CPU-s/GB instead of 0.19"), "{cost}");
    let whole = veth("ethtool -K veth0 gro on");
    assert_eq!(whole["gro"], true, "{whole}");
    assert_eq!(whole["udp_segmentation"], true, "{whole}");
    assert_eq!(whole["tx_checksum"], true, "{whole}");
    assert_eq!(whole["costs"].as_array().map(Vec::len), Some(0));
    let slow = veth("ethtool -K veth0 tx-udp-segmentation off");
    assert_eq!(slow["udp_segmentation"], false, "{slow}");
    assert_eq!(slow["tx_checksum"], true, "{slow}");
    let cost = slow["costs"][0].as_str().expect("a cost");
    assert!(cost.contains("1.2 CPU-s/GB instead of 0.35"), "{cost}");
}
