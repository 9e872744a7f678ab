//! What `soft-mlx5 run` tells the device in each process of the command.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::fabric::{Fabric, LinkLayer};
use crate::faults::Faults;
use crate::nic::NicConfig;

/// Environment variable that carries [`Options`].
pub const VARIABLE: &str = "SOFT_MLX5";

/// Options of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Directory of the run: each process keeps its sysfs tree there.
    pub dir: PathBuf,
    /// Name of the fabric, `None` for one of its own.
    pub fabric: Option<String>,
    /// What goes wrong.
    pub faults: Faults,
    /// Seed of everything random.
    pub seed: u64,
    /// Kind of link.
    pub link: LinkLayer,
    /// File for a line of each WQE, doorbell and CQE.
    pub trace: Option<PathBuf>,
    /// File for the packets between devices.
    pub pcap: Option<PathBuf>,
    /// Let queue pairs share registers.
    pub shared_registers: bool,
    /// Execute WQEs as they stand in shared registers.
    pub blue_flame: bool,
    /// Never give a queue pair a number that another one has had.
    pub distinct_qp_numbers: bool,
    /// Count what is registered against `RLIMIT_MEMLOCK`.
    pub memlock: bool,
    /// Timestamps in real time, for programs that ask for them.
    pub real_time: bool,
    /// Stop the program where an adapter would mangle something.
    pub strict: bool,
}

impl Options {
    /// The form in which the environment carries them.
    pub fn encode(&self) -> String {
        let mut words = Vec::new();
        if let Some(fabric) = &self.fabric {
            words.push(format!("fabric={fabric}"));
        }
        for (name, value) in self.faults.options() {
            words.push(format!("fault-{name}={value}"));
        }
        words.push(format!("seed={}", self.seed));
        words
            .push(format!("link={}", if self.link == LinkLayer::Ethernet { "roce" } else { "ib" }));
        if self.shared_registers {
            words.push("shared-registers".into());
        }
        if self.blue_flame {
            words.push("blue-flame".into());
        }
        if self.distinct_qp_numbers {
            words.push("distinct-qp-numbers".into());
        }
        if self.memlock {
            words.push("memlock".into());
        }
        if self.real_time {
            words.push("real-time".into());
        }
        if self.strict {
            words.push("strict".into());
        }
        for (name, path) in [("trace", &self.trace), ("pcap", &self.pcap)] {
            words.extend(path.as_ref().map(|path| format!("{name}={}", hex(path))));
        }
        // Last, for it may hold commas.
        words.push(format!("dir={}", self.dir.display()));
        words.join(",")
    }

    /// Reads what [`Self::encode`] wrote; `None` when it is something else.
    pub fn decode(text: &str) -> Option<Self> {
        let (words, dir) = match text.strip_prefix("dir=") {
            Some(dir) => ("", dir),
            None => text.split_once(",dir=")?,
        };
        let mut options = Self {
            dir: dir.into(),
            fabric: None,
            faults: Faults::default(),
            seed: 0,
            link: LinkLayer::InfiniBand,
            trace: None,
            pcap: None,
            shared_registers: false,
            blue_flame: false,
            distinct_qp_numbers: false,
            memlock: false,
            real_time: false,
            strict: false,
        };
        for word in words.split(',').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some(("fabric", name)) => options.fabric = Some(name.into()),
                Some(("seed", seed)) => options.seed = seed.parse().ok()?,
                Some(("link", "ib")) => options.link = LinkLayer::InfiniBand,
                Some(("link", "roce")) => options.link = LinkLayer::Ethernet,
                Some(("trace", path)) => options.trace = Some(unhex(path)?),
                Some(("pcap", path)) => options.pcap = Some(unhex(path)?),
                Some((name, value)) => {
                    options.faults.set(name.strip_prefix("fault-")?, value).ok()?
                }
                None if word == "shared-registers" => options.shared_registers = true,
                None if word == "blue-flame" => options.blue_flame = true,
                None if word == "distinct-qp-numbers" => options.distinct_qp_numbers = true,
                None if word == "memlock" => options.memlock = true,
                None if word == "real-time" => options.real_time = true,
                None if word == "strict" => options.strict = true,
                None => return None,
            }
        }
        Some(options)
    }

    /// The device that they describe.
    pub fn config(&self) -> NicConfig {
        NicConfig {
            fabric: self.fabric.clone().map_or(Fabric::Private, Fabric::Named),
            link_layer: self.link,
            faults: self.faults,
            seed: self.seed,
            trace: self.trace.clone(),
            pcap: self.pcap.clone(),
            epoch: 0,
            shared_registers: self.shared_registers,
            small_steps: false,
            blue_flame: self.blue_flame,
            distinct_qp_numbers: self.distinct_qp_numbers,
            memlock: self.memlock,
            real_time: self.real_time,
            strict: self.strict,
        }
    }
}

// A path may hold what separates words.
fn hex(path: &Path) -> String {
    path.as_os_str().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<PathBuf> {
    let digits = text.as_bytes().chunks_exact(2);
    let bytes = digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    bytes.collect::<Option<Vec<_>>>().map(|bytes| OsString::from_vec(bytes).into())
}

/// Whether a fabric can have this name: it becomes part of a file name.
pub fn is_fabric_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_environment() {
        let all = Options {
            dir: "/tmp/a,b=c".into(),
            fabric: Some("f-1".into()),
            faults: Faults { loss: 0.02, shuffle_completions: true, ..Faults::default() },
            seed: 77,
            link: LinkLayer::Ethernet,
            trace: Some("/tmp/a,b".into()),
            pcap: Some("/tmp/c=d".into()),
            shared_registers: true,
            blue_flame: true,
            distinct_qp_numbers: true,
            memlock: true,
            real_time: true,
            strict: true,
        };
        assert_eq!(Options::decode(&all.encode()), Some(all.clone()));
        let few = Options { fabric: None, strict: false, link: LinkLayer::InfiniBand, ..all };
        assert_eq!(Options::decode(&few.encode()), Some(few));
        assert_eq!(Options::decode("dir=/x").unwrap().dir, PathBuf::from("/x"));
    }

    #[test]
    fn foreign_text_is_no_options() {
        assert_eq!(Options::decode(""), None);
        assert_eq!(Options::decode("fault-loss=0.1"), None);
        assert_eq!(Options::decode("fault-loss=x,dir=/x"), None);
        assert_eq!(Options::decode("color=red,dir=/x"), None);
    }

    #[test]
    fn fabric_names_are_file_names() {
        assert!(is_fabric_name("a") && is_fabric_name("Job-7_x.y"));
        assert!(!is_fabric_name("") && !is_fabric_name("a/b") && !is_fabric_name(&"x".repeat(65)));
    }
}
