//! Makes the packages of the crates that can be published, and builds them from their contents only.

use std::fmt::Write;
use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Result;
use crate::isolate::Totals;
use crate::session::{Session, built, whole};

struct Package {
    name: String,
    version: String,
}

/// Packs each crate, unpacks it beside the others, and builds them without the repository.
pub fn run(session: &Session) -> Result<Totals> {
    let packages = published(session)?;
    let mut pack = session.cargo("package --no-verify --allow-dirty --offline --quiet");
    for package in &packages {
        pack.args(["-p", &package.name]);
    }
    let packed = whole(&mut pack)?;
    if !packed.is_success() {
        return Ok(packed);
    }
    let folder = session.target.join("packages");
    let work = folder.join("tree");
    let _ = fs::remove_dir_all(&work);
    let describe = |e| format!("{}: {e}", work.display());
    fs::create_dir_all(&work).map_err(describe)?;
    let mut manifest = String::from("[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n");
    manifest += "[patch.crates-io]\n";
    for Package { name, version } in &packages {
        let file = session.target.join(format!("package/{name}-{version}.crate"));
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--touch", "--file"]).arg(file).arg("--directory").arg(&work);
        if !whole(&mut tar)?.is_success() {
            return Err(format!("the package of {name} cannot be unpacked"));
        }
        let _ = writeln!(manifest, "{name} = {{ path = \"{name}-{version}\" }}");
    }
    fs::write(work.join("Cargo.toml"), manifest).map_err(describe)?;
    fs::copy(session.root.join("Cargo.lock"), work.join("Cargo.lock")).map_err(describe)?;
    // Each by itself: features that another package enables in a dependency must not help it.
    let mut totals = Totals::default();
    for Package { name, version } in &packages {
        let mut build = session.cargo("build --lib --bins --offline --quiet --package");
        build.arg(name).current_dir(&work).env("CARGO_TARGET_DIR", folder.join("target"));
        let one = built(&mut build)?;
        println!("package: {name} {version}: {}", if one.is_success() { "ok" } else { "FAILED" });
        totals += one;
    }
    Ok(totals)
}

/// Returns the packages of the workspace that may be published.
fn published(session: &Session) -> Result<Vec<Package>> {
    let mut command = session.cargo("metadata --format-version 1 --no-deps --offline");
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| format!("cargo: {e}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata has no packages")?;
    // `publish` is null for a package that may be published, and an empty list otherwise.
    let public = packages.iter().filter(|package| package["publish"].is_null());
    let package = |package: &Value| {
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        Package { name: text("name"), version: text("version") }
    };
    Ok(public.map(package).collect())
}
