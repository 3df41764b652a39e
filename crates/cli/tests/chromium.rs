//! Chromium as a client of `squall serve`, and of a WebTransport server: what a page loads, and by
//! which protocol, is read from the browser's timing data.
//!
//! `interop/chromium/setup` installs the browser; without it the test fails.

// A failed step should fail the test.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

#[path = "../../h3/examples/webtransport_echo.rs"]
#[allow(dead_code, reason = "its main is not used")]
mod webtransport_echo;

/// A child process, killed by its id when the test ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn browser(port: u16, spki: &str) -> Process {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/chromium/browser.py");
    let mut python = Command::new("python3");
    let python = python.arg(program).arg(port.to_string()).arg(spki);
    let python = python.stdin(Stdio::piped()).stdout(Stdio::piped());
    Process(python.spawn().expect("python3 starts"))
}

/// Runs `script` in the page at `path`; its result is a string.
fn run(browser: &mut Process, path: &str, script: &str) -> String {
    let script = script.replace('\n', " ");
    let input = browser.0.stdin.as_mut().unwrap();
    writeln!(input, "run {path} {script}").unwrap();
    let mut answer = String::new();
    let output = browser.0.stdout.as_mut().unwrap();
    BufReader::with_capacity(1, output)
        .read_line(&mut answer)
        .unwrap();
    let answer = answer.trim_end();
    let result = answer.strip_prefix("result ");
    let result = result.unwrap_or_else(|| panic!("{answer:?}: is Chromium installed?"));
    serde_json::from_str(result).unwrap()
}

/// A folder with a page, images, a long file, and sound that a video element can seek in.
fn site() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("squall-chromium-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("images")).unwrap();
    let images: String = (0..200)
        .map(|i| format!("<img src=/images/{i}.svg>"))
        .collect();
    let page = format!("<!doctype html><title>a page</title>{images}");
    std::fs::write(folder.join("index.html"), page).unwrap();
    for i in 1..=200 {
        let image =
            format!("<svg xmlns='http://www.w3.org/2000/svg' width='{i}' height='1'><rect/></svg>");
        std::fs::write(folder.join(format!("images/{}.svg", i - 1)), image).unwrap();
    }
    let file: Vec<u8> = (0..5_000_000u32)
        .flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    std::fs::write(folder.join("file.bin"), file).unwrap();
    std::fs::write(folder.join("sound.wav"), sound(600)).unwrap();
    folder
}

/// Seconds of silence as a RIFF WAVE file: no codec is needed to make it.
fn sound(seconds: u32) -> Vec<u8> {
    let (rate, bytes) = (8000u32, 2u16);
    let len = seconds * rate * u32::from(bytes);
    let mut file = Vec::new();
    file.extend_from_slice(b"RIFF");
    file.extend_from_slice(&(36 + len).to_le_bytes());
    file.extend_from_slice(b"WAVEfmt ");
    file.extend_from_slice(&16u32.to_le_bytes());
    file.extend_from_slice(&1u16.to_le_bytes());
    file.extend_from_slice(&1u16.to_le_bytes());
    file.extend_from_slice(&rate.to_le_bytes());
    file.extend_from_slice(&(rate * u32::from(bytes)).to_le_bytes());
    file.extend_from_slice(&bytes.to_le_bytes());
    file.extend_from_slice(&(8 * bytes).to_le_bytes());
    file.extend_from_slice(b"data");
    file.extend_from_slice(&len.to_le_bytes());
    file.resize(file.len() + len as usize, 0);
    file
}

/// `squall serve` on a free port, with the fingerprint of its key.
fn serve(folder: &Path) -> (Process, u16, String) {
    let mut squall = Command::new(env!("CARGO_BIN_EXE_squall"));
    let squall = squall
        .arg("serve")
        .arg(folder)
        .args(["--listen", "[::]:0", "--workers", "1"]);
    let mut process = Process(
        squall
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let (mut port, mut spki) = (None, None);
    let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        if let Some(rest) = line.strip_prefix("listening on [::]:") {
            port = rest.split(' ').next().and_then(|port| port.parse().ok());
        }
        if let Some((_, value)) = line.split_once("--ignore-certificate-errors-spki-list=") {
            spki = Some(value.to_owned());
        }
        if let (Some(port), Some(spki)) = (port, &spki) {
            return (process, port, spki.clone());
        }
    }
    panic!("squall serve says neither its port nor its key");
}

#[test]
fn chromium_loads_a_page_and_seeks_in_a_video_over_http3() {
    let folder = site();
    let (_server, port, spki) = serve(&folder);
    let mut browser = browser(port, &spki);
    let loaded = run(
        &mut browser,
        "/",
        r#"const images = [...document.images];
           const file = await (await fetch("/file.bin")).arrayBuffer();
           const words = new Uint32Array(file);
           const right = words.every((word, i) => word === Math.imul(i, 2654435761) >>> 0);
           const entries = performance.getEntries().filter((entry) => "nextHopProtocol" in entry);
           const protocols = [...new Set(entries.map((entry) => entry.nextHopProtocol))];
           return [
               images.filter((image, i) => image.naturalWidth === i + 1).length,
               file.byteLength, right, entries.length >= 202, protocols,
           ].join(" ");"#,
    );
    assert_eq!(loaded, "200 20000000 true true h3");
    let sought = run(
        &mut browser,
        "/",
        r#"const video = document.createElement("video");
           video.muted = true;
           video.src = "/sound.wav";
           document.body.append(video);
           await new Promise((done, fail) => {
               video.onloadedmetadata = done;
               video.onerror = () => fail(new Error(video.error.message));
           });
           const times = [];
           for (const time of [590, 3, 300]) {
               video.currentTime = time;
               await new Promise((done) => (video.onseeked = done));
               times.push(video.currentTime);
           }
           const entry = performance.getEntriesByName(video.src)[0];
           return [video.duration, times, entry.nextHopProtocol].join(" ");"#,
    );
    assert_eq!(sought, "600 590,3,300 h3");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_page_speaks_webtransport() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let (endpoint, certificate) = webtransport_echo::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let echo_port = endpoint.local_addr().unwrap().port();
    runtime.spawn(webtransport_echo::serve(endpoint));
    let folder = std::env::temp_dir().join(format!("squall-webtransport-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(
        folder.join("index.html"),
        "<!doctype html><title>a page</title>",
    )
    .unwrap();
    let (_server, port, spki) = serve(&folder);
    let mut browser = browser(port, &spki);
    let bytes: Vec<String> = certificate.iter().map(u8::to_string).collect();
    let script = r#"
        const value = await crypto.subtle.digest("SHA-256", Uint8Array.of(BYTES));
        const session = new WebTransport("https://127.0.0.1:PORT/echo", {
            serverCertificateHashes: [{algorithm: "sha-256", value}],
        });
        await session.ready;
        const encode = (text) => new TextEncoder().encode(text);
        const answers = [];
        const both = await session.createBidirectionalStream();
        const to = both.writable.getWriter();
        to.write(encode("a stream"));
        to.close();
        answers.push(await new Response(both.readable).text());
        const one = (await session.createUnidirectionalStream()).getWriter();
        one.write(encode("one way").slice());
        one.write(new Uint8Array(1000000));
        one.close();
        const back = (await session.incomingUnidirectionalStreams.getReader().read()).value;
        const all = await new Response(back).text();
        answers.push(all.slice(0, 7), all.length);
        const datagrams = session.datagrams.readable.getReader();
        const sender = session.datagrams.writable.getWriter();
        await sender.write(encode("a datagram"));
        answers.push(new TextDecoder().decode((await datagrams.read()).value));
        session.close({closeCode: 7, reason: "done"});
        const closed = await session.closed;
        answers.push(closed.closeCode);
        return answers.join(", ");"#;
    let script = script
        .replace("BYTES", &bytes.join(","))
        .replace("PORT", &echo_port.to_string());
    let said = run(&mut browser, "/", &script);
    assert_eq!(said, "a stream, one way, 1000007, a datagram, 7");
    std::fs::remove_dir_all(folder).unwrap();
}
