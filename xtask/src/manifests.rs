//! Which crates of the workspace a crate depends on.

use crate::finding::Finding;
use crate::floors::{MAY_DEPEND_ON, WITHOUT_DEPENDENCIES};

/// Checks one member's manifest. Test dependencies are exempt.
pub(crate) fn check(path: &str, manifest: &str) -> Vec<Finding> {
    let Some(package) = package_name(manifest) else {
        return vec![Finding::new(path, 0, "the manifest names no package")];
    };
    let Some((_, allowed)) = MAY_DEPEND_ON.iter().find(|(name, _)| *name == package) else {
        let message = format!("crate `{package}` has no row in xtask/src/floors.rs");
        return vec![Finding::new(path, 0, message)];
    };
    let mut findings = Vec::new();
    for (dependency, line) in dependencies(manifest) {
        let ours = MAY_DEPEND_ON.iter().any(|(name, _)| *name == dependency);
        if ours && !allowed.contains(&dependency.as_str()) {
            let message = format!("`{package}` must not depend on `{dependency}`");
            findings.push(Finding::new(path, line, message));
        }
        if !ours && WITHOUT_DEPENDENCIES.contains(&package) {
            let message = format!("`{package}` has no dependencies, so not `{dependency}` either");
            findings.push(Finding::new(path, line, message));
        }
    }
    findings
}

fn package_name(manifest: &str) -> Option<&str> {
    let mut section = "";
    manifest.lines().find_map(|line| {
        section = section_name(line).unwrap_or(section);
        let (key, value) = line.split_once('=')?;
        (section == "package" && key.trim() == "name").then(|| value.trim().trim_matches('"'))
    })
}

fn section_name(line: &str) -> Option<&str> {
    let line = line.split('#').next().unwrap_or(line).trim();
    Some(
        line.strip_prefix('[')?
            .strip_suffix(']')?
            .trim_matches(['[', ']'])
            .trim(),
    )
}

/// Normal and build dependencies, those for specific targets included, with their lines.
fn dependencies(manifest: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut in_list = false;
    for (line, text) in (1..).zip(manifest.lines()) {
        if let Some(section) = section_name(text) {
            // `[dependencies]`, `[target.'cfg(unix)'.dependencies]`, `[dependencies.name]`
            let (table, name) = match section.rsplit_once('.') {
                Some((table, name)) if is_list(table) => (table, Some(name)),
                _ => (section, None),
            };
            in_list = is_list(table) && name.is_none();
            found.extend(name.map(|name| (name.trim_matches('"').to_owned(), line)));
            continue;
        }
        let text = text.trim();
        if !in_list || text.is_empty() || text.starts_with('#') {
            continue;
        }
        if let Some((key, value)) = text.split_once('=') {
            // `name = …` or `name.workspace = true`; a renamed crate says so.
            let name = key
                .split('.')
                .next()
                .unwrap_or(key)
                .trim()
                .trim_matches('"');
            let renamed = value
                .split_once("package")
                .and_then(|(_, rest)| rest.trim_start().strip_prefix('=')?.split('"').nth(1));
            found.push((renamed.unwrap_or(name).to_owned(), line));
        }
    }
    found
}

fn is_list(table: &str) -> bool {
    ["dependencies", "build-dependencies"].contains(&table)
        || table.starts_with("target.")
            && (table.ends_with(".dependencies") || table.ends_with(".build-dependencies"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(package: &str, rest: &str) -> Vec<String> {
        let manifest = format!("[package]\nname = \"{package}\"\n{rest}");
        check("Cargo.toml", &manifest)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_dependency_upwards_is_found_in_every_form() {
        for rest in [
            "[dependencies]\nsquall-core.workspace = true",
            "[dependencies]\nsquall-core = { path = \"../core\" }",
            "[dependencies]\n\"squall-core\" = \"1\"",
            "[dependencies]\nengine = { package = \"squall-core\", path = \"../core\" }",
            "[build-dependencies] # why\nsquall-core.workspace = true",
            "\n[dependencies.squall-core]\nworkspace = true",
            "[target.'cfg(unix)'.dependencies]\nsquall-core.workspace = true",
        ] {
            let found = messages("squall-tls", rest);
            assert_eq!(
                found,
                ["Cargo.toml:4: `squall-tls` must not depend on `squall-core`"],
                "{rest}"
            );
        }
    }

    #[test]
    fn dependencies_in_the_table_are_allowed() {
        let rest = "[dependencies]\n# Why.\nsquall-protect.workspace = true\nrustls = \"0.23\"\n\
                    [dev-dependencies]\nsquall-core.workspace = true\n[features]\nsquall-core = []";
        assert_eq!(messages("squall-tls", rest), [""; 0]);
    }

    #[test]
    fn wire_must_not_have_dependencies() {
        let rest = "[dependencies]\nbytes = \"1\"\n[dev-dependencies]\nproptest = \"1\"";
        let expected = "Cargo.toml:4: `squall-wire` has no dependencies, so not `bytes` either";
        assert_eq!(messages("squall-wire", rest), [expected]);
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let expected = "Cargo.toml: crate `squall-new` has no row in xtask/src/floors.rs";
        assert_eq!(messages("squall-new", ""), [expected]);
    }
}
