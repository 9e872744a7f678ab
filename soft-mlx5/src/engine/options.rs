//! The options of a device: one table for the program, for the environment that it makes, and for the device.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::{NicConfig, Timing};
use crate::base::faults;
use crate::base::options::{DeviceOption, options};
use crate::fabric::{Fabric, LinkLayer};

/// Environment variable that carries [`Options`].
pub const VARIABLE: &str = "SOFT_MLX5";

/// All options but those of faults.
const DEVICE: &[DeviceOption] = options! {
    "fabric" Some("NAME"), "Join a fabric: devices with the same fabric name are connected [default: one for this run]";
    "all-users" None, "With --fabric: connect processes of all users, each of which can then write to the memory of each";
    "timing" Some("NAME"), "Pace of the device: adapter is as slow as an adapter can be [default: as fast as it can]";
    "lowest-timeout" Some("CODE"), "Take lower ACK timeouts as this one, and wait exactly: firmware has 16 or 17";
    "seed" Some("N"), "Seed of all random choices [default: 0]";
    "link" Some("LAYER"), "Link layer of the port: ib or roce [default: ib]";
    "shared-registers" None, "Let QPs share UAR registers, as libmlx5 does on current kernels";
    "blue-flame" None, "Share registers, and execute the WQE in the register: for programs that copy whole WQEs";
    "distinct-qp-numbers" None, "Never use a QP number twice";
    "devx" Some("MODE"), "Whether programs may send firmware commands (DEVX): on or off [default: on]";
    "memlock" None, "Count registered memory against RLIMIT_MEMLOCK, as the kernel does";
    "real-time" None, "Offer timestamps in real time";
    "frames" Some("FILE"), "Send the frames of a capture file (pcap) to the port, from its first flow on, at their times";
    "frames-rate" Some("N"), "Send N of these frames per second instead";
    "netdev" Some("NAME"), "Connect the port to a network interface of the machine (needs CAP_NET_RAW)";
    "refuse-raw" None, "Refuse raw packet QPs and flows, as the kernel does without CAP_NET_RAW";
    "strict" None, "Stop the program where an adapter would silently corrupt data";
    "trace" Some("FILE"), "Write a line for each WQE, doorbell and CQE to a file";
    "pcap" Some("FILE"), "Write the packets between devices to a file that tshark reads";
};

/// Returns the options of a device, and then the options of faults.
pub fn all() -> [&'static [DeviceOption]; 2] {
    [DEVICE, faults::OPTIONS]
}

impl NicConfig {
    /// Sets an option by its name and its value, which is empty for an option without one. The error says what the
    /// value must be.
    pub fn set(&mut self, name: &str, value: &OsStr) -> Result<(), String> {
        let refused = |what| format!("--{name} {}: {what}", value.to_string_lossy());
        let text = || value.to_str().ok_or_else(|| refused("is not UTF-8"));
        if faults::OPTIONS.iter().any(|option| option.name == name) {
            return self.faults.set(name, text()?);
        }
        if let Some(flag) = self.flag(name) {
            *flag = true;
            return if value.is_empty() { Ok(()) } else { Err(refused("has no value")) };
        }
        match name {
            "trace" => self.trace = Some(value.into()),
            "pcap" => self.pcap = Some(value.into()),
            "frames" => self.frames = Some(value.into()),
            "frames-rate" => {
                let rate = text()?.parse().ok().filter(|rate: &f64| *rate > 0.0 && rate.is_finite());
                self.frames_rate = Some(rate.ok_or_else(|| refused("must be a number above 0"))?);
            }
            "netdev" => self.netdev = Some(text()?.into()),
            "fabric" if is_fabric_name(text()?) => self.fabric = Fabric::Named(text()?.into()),
            "fabric" => return Err(refused(NOT_A_FABRIC)),
            "timing" if text()? == "adapter" => self.timing = Timing::Adapter,
            "timing" => return Err(refused("must be adapter")),
            "devx" => match text()? {
                "on" => self.without_devx = false,
                "off" => self.without_devx = true,
                _ => return Err(refused("must be on or off")),
            },
            "lowest-timeout" => {
                let code = text()?.parse().ok().filter(|code| (1..32).contains(code));
                self.lowest_timeout = Some(code.ok_or_else(|| refused("must be a number from 1 to 31"))?);
            }
            "seed" => {
                self.seed = text()?.parse().map_err(|_| refused("must be a whole number"))?;
            }
            "link" => match text()? {
                "ib" => self.link_layer = LinkLayer::InfiniBand,
                "roce" => self.link_layer = LinkLayer::Ethernet,
                _ => return Err(refused("must be ib or roce")),
            },
            _ => return Err(refused("there is no such option")),
        }
        Ok(())
    }

    fn flag(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "shared-registers" => &mut self.shared_registers,
            "blue-flame" => &mut self.blue_flame,
            "distinct-qp-numbers" => &mut self.distinct_qp_numbers,
            "all-users" => &mut self.all_users,
            "memlock" => &mut self.memlock,
            "real-time" => &mut self.real_time,
            "refuse-raw" => &mut self.refuse_raw,
            "strict" => &mut self.strict,
            _ => return None,
        })
    }

    /// Returns the options of which [`Self::set`] makes the same device.
    fn options(&self) -> Vec<(&'static str, OsString)> {
        let mut config = self.clone();
        let mut options = Vec::new();
        for DeviceOption { name, .. } in DEVICE {
            let value = match *name {
                "fabric" => match &self.fabric {
                    Fabric::Named(fabric) | Fabric::OfAllUsers(fabric) => Some(fabric.into()),
                    Fabric::Private | Fabric::Switch(_) => None,
                },
                "timing" => (self.timing == Timing::Adapter).then(|| "adapter".into()),
                "devx" => self.without_devx.then(|| "off".into()),
                "lowest-timeout" => self.lowest_timeout.map(|code| code.to_string().into()),
                "seed" => Some(self.seed.to_string().into()),
                "link" if self.link_layer == LinkLayer::Ethernet => Some("roce".into()),
                "trace" => self.trace.clone().map(PathBuf::into_os_string),
                "pcap" => self.pcap.clone().map(PathBuf::into_os_string),
                "frames" => self.frames.clone().map(PathBuf::into_os_string),
                "frames-rate" => self.frames_rate.map(|rate| rate.to_string().into()),
                "netdev" => self.netdev.clone().map(OsString::from),
                flag => config.flag(flag).filter(|flag| **flag).map(|_| OsString::new()),
            };
            options.extend(value.map(|value| (*name, value)));
        }
        options.extend(self.faults.options().into_iter().map(|(name, value)| (name, value.into())));
        options
    }
}

/// Options that `soft-mlx5 run` passes to the device in each process of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the run: each process keeps its sysfs tree there.
    pub dir: PathBuf,
    /// The device.
    pub config: NicConfig,
}

impl Options {
    /// Returns the options in the form for the environment.
    pub fn encode(&self) -> String {
        let options = self.config.options().into_iter();
        let words: String = options.map(|(name, value)| format!("{name}={},", escape(&value))).collect();
        // The directory is last: it may hold commas.
        format!("{words}dir={}", self.dir.display())
    }

    /// Reads a text of [`Self::encode`]; returns `None` for any other text.
    pub fn decode(text: &str) -> Option<Self> {
        let (words, dir) = match text.strip_prefix("dir=") {
            Some(dir) => ("", dir),
            None => text.split_once(",dir=")?,
        };
        let mut config = NicConfig::default();
        for word in words.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=')?;
            config.set(name, &unescape(value)?).ok()?;
        }
        Some(Self { dir: dir.into(), config })
    }
}

// A path may hold the characters that separate words.
fn escape(value: &OsStr) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte);
    let bytes = value.as_bytes().iter();
    bytes.map(|&b| if plain(b) { char::from(b).into() } else { format!("%{b:02x}") }).collect()
}

fn unescape(text: &str) -> Option<OsString> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend(part.get(2..)?.bytes());
    }
    Some(OsString::from_vec(bytes))
}

/// Rule for the name of a fabric.
pub const NOT_A_FABRIC: &str = "the name of a fabric consists of letters, digits, `-`, `_` and `.`";

/// Returns `true` if a fabric can have this name: it becomes part of a file name.
pub fn is_fabric_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_survives_the_environment() {
        let values = ["", "roce", "adapter", "off", "7", "0.5", "7:9", "qp:3", "/tmp/a,b=c%20\u{e9}"];
        let mut config = NicConfig::default();
        let plain = config.options().len();
        let mut count = 0;
        for option in all().into_iter().flatten() {
            let fits = |value: &&&str| {
                value.is_empty() == option.value.is_none() && config.clone().set(option.name, OsStr::new(value)).is_ok()
            };
            let Some(value) = values.iter().rev().find(fits) else {
                // Names that only the list of defects has.
                assert_eq!(option.name, "fault", "no value fits --{}", option.name);
                continue;
            };
            config.set(option.name, OsStr::new(value)).unwrap();
            count += 1;
        }
        // The seed is always passed on.
        assert_eq!(config.options().len(), count, "{plain}");
        let options = Options { dir: "/tmp/a,b=c".into(), config };
        let again = Options::decode(&options.encode()).unwrap();
        assert_eq!(again.encode(), options.encode());
        assert_eq!((again.dir, again.config.options()), (options.dir, options.config.options()));
        assert_eq!(Options::decode("dir=/x").unwrap().dir, PathBuf::from("/x"));
    }

    #[test]
    fn foreign_text_is_not_parsed_as_options() {
        for text in ["", "loss=0.1", "loss=x,dir=/x", "color=red,dir=/x", "strict,dir=/x", "seed=%7,dir=/x"] {
            assert!(Options::decode(text).is_none(), "{text}");
        }
    }

    #[test]
    fn the_table_of_the_readme_is_this_one() {
        let mut table = String::from("| option | what it does |\n|---|---|\n");
        for DeviceOption { name, value, help } in all().into_iter().flatten() {
            let value = value.map(|value| format!(" {value}")).unwrap_or_default();
            table += &format!("| `--{name}{value}` | {help} |\n");
        }
        assert!(include_str!("../../README.md").contains(&table), "put this into README.md:\n{table}");
    }

    #[test]
    fn fabric_names_are_file_names() {
        assert!(is_fabric_name("a") && is_fabric_name("Job-7_x.y"));
        assert!(!is_fabric_name("") && !is_fabric_name("a/b") && !is_fabric_name(&"x".repeat(65)));
    }
}
