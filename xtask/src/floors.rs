//! The plan of the house as tables. Whoever moves a wall changes it here, and in `ARCHITECTURE.md`.

/// The floors of `crates/core`, lowest first: a module imports from its own floor or a lower one.
/// Every top-level module but `lib` has a place here.
pub(crate) const CORE_FLOORS: &[&[&str]] = &[
    &[
        "algorithm",
        "config",
        "datagram",
        "error",
        "event",
        "prefix",
        "sent_frame",
        "qlog",
        "range_set",
        "range_tree",
        "reset_directory",
        "rng",
        "stages",
        "stream_hash",
        "time",
        "token",
        "token_filter",
        "token_store",
    ],
    &["space", "stream"],
    &["recovery"],
    &["congestion"],
    &["path"],
    &["connection"],
    &["endpoint"],
];

/// Crates in which files still import from each other in circles. This list only gets shorter.
pub(crate) const WITH_CIRCLES_OF_FILES: &[&str] = &[
    "crates/core",
    "crates/protect",
    "crates/squall",
    "crates/wire",
];

/// Which crates of this workspace a crate may depend on. External crates are free, with the reason
/// in the manifest.
pub(crate) const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("squall-wire", &[]),
    ("squall-protect", &[]),
    ("squall-tls", &["squall-protect"]),
    (
        "squall-core",
        &["squall-wire", "squall-protect", "squall-tls"],
    ),
    ("squall-udp", &["squall-wire"]),
    (
        "squall",
        &["squall-core", "squall-udp", "squall-tls", "squall-wire"],
    ),
    ("squall-h3", &["squall", "squall-wire"]),
    (
        "squall-sim",
        &["squall-core", "squall-protect", "squall-wire", "squall-tls"],
    ),
    ("squall-yard", &["squall", "squall-core", "squall-wire"]),
    (
        "squall-cli",
        &[
            "squall",
            "squall-core",
            "squall-h3",
            "squall-protect",
            "squall-sim",
            "squall-tls",
            "squall-udp",
            "squall-wire",
            "squall-yard",
        ],
    ),
    ("squall-interop", &["squall"]),
    ("xtask", &[]),
];

/// Crates that use nothing from outside either.
pub(crate) const WITHOUT_DEPENDENCIES: &[&str] = &["squall-wire"];

/// Where `unsafe` may stand: folders (with a slash at the end) and files.
pub(crate) const UNSAFE_PLACES: &[&str] = &[
    "crates/protect/src/kernel/",
    "crates/udp/src/",
    // The thread's CPU clock, its affinity, and the time-stamp counter.
    "crates/squall/src/sys.rs",
    // The counting allocators of tests.
    "crates/squall/tests/cost_contract.rs",
    "crates/protect/tests/no_allocation.rs",
    "crates/core/tests/common/counting.rs",
    // The CPU time of a thread, for the test that compares costs.
    "crates/sim/tests/work.rs",
    "crates/yard/src/sys.rs",
    // Glue to C libraries in shared objects of their own, and what loads them.
    "peers/boringssl/src/lib.rs",
    "peers/openssl/src/lib.rs",
    "peers/src/protect/contenders/shared_object.rs",
    // A socket's options and bundles, for quiche, which brings no I/O.
    "peers/src/transport/socket.rs",
    "peers/src/transport/quiche/udp.rs",
];

/// Where time and threads arrive from outside: no clock is read and no thread is started there.
pub(crate) const WITHOUT_CLOCK: &[&str] = &[
    "crates/core/src/",
    "crates/wire/src/",
    "crates/protect/src/",
    "crates/tls/src/",
];

/// Lines from which on a file is listed, since it may be two things.
pub(crate) const LONG_FILE_LINES: usize = 800;
