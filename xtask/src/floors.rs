//! The structure as tables. A change of the structure is made here and in `ARCHITECTURE.md`.

/// The floors of `crates/core`, lowest first: a module imports from its own floor or a lower one.
/// Every top-level module but `lib` has a place here.
pub(crate) const CORE_FLOORS: &[&[&str]] = &[
    &[
        "algorithm",
        "config",
        "error",
        "event",
        "observation",
        "prefix",
        "sent_frame",
        "qlog",
        "range_set",
        "range_tree",
        "reset_directory",
        "rng",
        "stages",
        "stream_hash",
        "stream_map",
        "time",
        "token",
        "token_filter",
        "token_store",
        "trace",
    ],
    &["datagram", "space", "stream"],
    &["recovery"],
    &["congestion"],
    &["path"],
    &["connection"],
    &["endpoint"],
];

/// Which crates of this workspace a crate may depend on. External crates are allowed, with the
/// reason in the manifest.
pub(crate) const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("squall-wire", &[]),
    ("squall-protect", &[]),
    // The same for C, and for stacks that take their keys from rustls.
    ("squall-protect-c", &["squall-protect"]),
    ("squall-rustls", &["squall-protect"]),
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
    // h3 is 0.0.x, so only tests may depend on its adaptor.
    ("h3-squall", &["squall"]),
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
    ("squall-interop", &["squall", "squall-h3", "h3-squall"]),
    ("xtask", &[]),
];

/// Crates without external dependencies either.
pub(crate) const WITHOUT_DEPENDENCIES: &[&str] = &["squall-wire"];

/// Where `unsafe` is allowed: folders (with a slash at the end) and files.
pub(crate) const UNSAFE_PLACES: &[&str] = &[
    "crates/protect/src/kernel/",
    // The functions that C calls.
    "crates/protect-c/src/",
    "crates/udp/src/",
    // Pages, socket options and a CPU clock for a benchmark.
    "crates/udp/benches/kernel.rs",
    // The thread's CPU clock, its affinity, and the time-stamp counter.
    "crates/squall/src/sys.rs",
    // The counting allocators of tests.
    "crates/squall/tests/cost_contract.rs",
    "crates/protect/tests/no_allocation.rs",
    "crates/core/tests/common/counting.rs",
    "crates/h3/tests/no_allocation.rs",
    // The CPU time of a thread, for the test that compares costs.
    "crates/sim/tests/work/main.rs",
    "crates/yard/src/sys.rs",
    // Glue to C libraries in separate shared objects, and their loader.
    "peers/boringssl/src/lib.rs",
    "peers/openssl/src/lib.rs",
    "peers/ipsec-mb/src/lib.rs",
    "peers/src/protect/contenders/shared_object.rs",
    // A socket's options and bundles, for quiche, which brings no I/O.
    "peers/src/transport/socket.rs",
    "peers/src/transport/quiche/udp.rs",
    // A device in a namespace, and precise waiting, for the router of `smoothness`.
    "peers/src/transport/smoothness/tun.rs",
];

/// Where time and threads come from outside: no clock is read and no thread is started here.
pub(crate) const WITHOUT_CLOCK: &[&str] = &[
    "crates/core/src/",
    "crates/wire/src/",
    "crates/protect/src/",
    "crates/tls/src/",
];
/// An exception, which reads a clock to measure the CPU.
pub(crate) const WITH_CLOCK: &[&str] = &["crates/protect/src/kernel/trial.rs"];

/// Files with at least this many lines are listed, since they may do two things.
pub(crate) const LONG_FILE_LINES: usize = 800;

/// Maximum number of lines of a function in [`SHORT_FUNCTIONS`].
pub(crate) const FUNCTION_LINES: usize = 100;
/// Where this limit applies.
pub(crate) const SHORT_FUNCTIONS: &[&str] = &["crates/core/src/"];

/// Maximum number of lines of a function in [`DATA_PATH`].
pub(crate) const DATA_PATH_FUNCTION_LINES: usize = 70;
/// What every packet goes through.
pub(crate) const DATA_PATH: &[&str] = &[
    "crates/core/src/connection/receive",
    "crates/core/src/connection/transmit",
    "crates/protect/src/kernel/",
    "crates/protect/src/open.rs",
    "crates/protect/src/seal.rs",
    "crates/protect/src/span.rs",
];

/// Maximum number of parameters of a function besides `self`.
pub(crate) const PARAMETERS: usize = 6;
/// Where this limit applies.
pub(crate) const FEW_PARAMETERS: &str = "crates/core/src/";

/// The last column that a comment may reach.
pub(crate) const COMMENT_COLUMNS: usize = 100;

/// The type that is the whole, and the folders of its parts, which must not name it.
pub(crate) const PARTS: (&str, &[&str]) = (
    "Connection",
    &[
        "crates/core/src/connection/handshake/",
        "crates/core/src/connection/parts/",
    ],
);
