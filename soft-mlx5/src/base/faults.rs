//! Faults of a device, on request.

use std::time::Duration;

use super::options::{DeviceOption, options};

pub use super::defect::Defect;

/// Faults of a device. All random choices follow from the seed of the device.
///
/// Each field is an option of the command line; [`Faults::set`] reads the options.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Faults {
    /// Probability that a packet is lost on its way out of the port.
    pub loss: f64,
    /// Probability that a packet arrives twice.
    pub duplication: f64,
    /// Probability that a packet is overtaken by packets sent after it.
    pub reordering: f64,
    /// Every packet arrives this much later.
    pub delay: Duration,
    /// Probability that the receiver of a reliable connection answers a message with `receiver not ready`,
    /// although the message needs a receive WQE and WQEs are posted.
    pub rnr: f64,
    /// CQEs of different work queues reach their CQ in random order; CQEs of one work queue keep their order. CQs of
    /// tag matching are spared: there the CQE of one queue defines the meaning of another's.
    pub shuffle_completions: bool,
    /// The send WQE with this number, counted over the device from 1, fails with
    /// `IBV_WC_LOC_QP_OP_ERR`.
    pub fail_send: Option<u64>,
    /// The message with this number that is put into a receive WQE fails with `IBV_WC_LOC_QP_OP_ERR`.
    pub fail_receive: Option<u64>,
    /// The QP of the send WQE or incoming message with this number goes to error with `IBV_EVENT_QP_FATAL`; no
    /// WQE is reported as the cause.
    pub qp_fatal: Option<u64>,
    /// Commands to destroy an object that fail with `EBUSY`: the object stays and continues to work.
    pub fail_destroy: ByKind,
    /// Commands to create an object that fail: with `EAGAIN` for a memory region, with `ENOMEM` for other objects.
    pub fail_create: ByKind,
    /// Queue pairs that the device has room for: to create one more fails with `ENOMEM`.
    pub max_qps: Option<u64>,
    /// Memory keys that the device has room for: to register one region more fails with `EAGAIN`.
    pub max_mkeys: Option<u64>,
    /// Mappings of a process (`vm.max_map_count`): an `madvise` for a fork fails with `ENOMEM` if there are as many.
    /// The device then says, as old kernels do, that a fork shares the pages of a registration.
    pub max_map_count: Option<u64>,
    /// The port goes down and up, over and over.
    pub port_flap: Option<PortFlap>,
    /// The device is removed this long after power-up: `IBV_EVENT_DEVICE_FATAL`, and `EIO` of commands.
    pub remove_after: Option<Duration>,
    /// The firmware stops this long after power-up, until a driver starts it again: the syndrome of a function of
    /// `serve` asks for a reset, and no command is executed.
    pub fail_firmware: Option<Duration>,
    /// The device works once in this time, and then on one packet and one QP only.
    pub slow: Option<Duration>,
    /// A rule that the device breaks.
    pub defect: Option<Defect>,
}

/// Commands that fail, by the type of the object that they create or destroy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByKind {
    /// Memory regions.
    pub mr: Which,
    /// Queue pairs.
    pub qp: Which,
    /// Shared receive queues.
    pub srq: Which,
    /// Completion queues.
    pub cq: Which,
    /// Address handles of the kernel: libmlx5 lets the kernel make handles of Ethernet, and keeps handles of
    /// InfiniBand to itself.
    pub ah: Which,
    /// Protection domains.
    pub pd: Which,
}

/// Which of the commands of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Which {
    /// None.
    #[default]
    None,
    /// All.
    All,
    /// The command with this number, counted from 1.
    Nth(u64),
}

impl Which {
    /// Returns `true` if the command with this number is meant.
    pub fn is(self, number: u64) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Nth(nth) => nth == number,
        }
    }
}

/// A port that does not stay up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortFlap {
    /// Time that it is up.
    pub up: Duration,
    /// Time that it is down, after which it comes up again.
    pub down: Duration,
}

/// All faults as options.
pub const OPTIONS: &[DeviceOption] = options! {
    "loss" Some("P"), "Lose packets with this probability, 0 to 1";
    "duplicate" Some("P"), "Send packets twice with this probability";
    "reorder" Some("P"), "Delay packets past later ones with this probability";
    "delay" Some("US"), "Delay every packet by this many microseconds";
    "rnr" Some("P"), "Answer `receiver not ready` with this probability";
    "shuffle-completions" None, "Write the CQEs of different work queues in random order";
    "fail-send" Some("N"), "Complete the N-th send WQE in error";
    "fail-receive" Some("N"), "Complete the N-th received message in error";
    "qp-fatal" Some("N"), "Take the QP of the N-th message, sent or received, to error";
    "fail-destroy" Some("KIND[:N]"), "Fail the destruction of each (or the N-th) mr, qp, srq, cq, ah or pd";
    "fail-create" Some("KIND[:N]"), "Fail the creation of each (or the N-th) mr, qp, srq, cq, ah or pd";
    "max-qps" Some("N"), "Have room for N QPs, after which ibv_create_qp fails with ENOMEM";
    "max-mkeys" Some("N"), "Have room for N memory keys, after which ibv_reg_mr fails with EAGAIN";
    "max-map-count" Some("N"), "Fail ibv_reg_mr after ibv_fork_init with ENOMEM if the process has N mappings";
    "port-flap" Some("UP:DOWN"), "Take the port down after UP ms and up after DOWN ms, repeatedly";
    "remove-after" Some("MS"), "Remove the device this many milliseconds after its first use";
    "fail-firmware" Some("MS"), "Stop the firmware of a virtual machine's function after this many milliseconds";
    "fault" Some("NAME"), "Break a rule that programs rely on; an unknown name lists all";
    "slow" Some("US"), "Work only once in this many microseconds, on one packet";
};

impl Faults {
    /// Returns `true` if there are no faults.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns `true` if packets get lost, doubled, out of order or late.
    pub fn touch_packets(&self) -> bool {
        let probabilities = [self.loss, self.duplication, self.reordering];
        probabilities.iter().any(|p| *p > 0.0) || !self.delay.is_zero()
    }

    /// Sets a fault by the name of its option and the text of its value, which is empty for an option
    /// without one. The error says what the value must be.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let outcome = match name {
            "loss" => probability(value).map(|p| self.loss = p),
            "duplicate" => probability(value).map(|p| self.duplication = p),
            "reorder" => probability(value).map(|p| self.reordering = p),
            "delay" => number(value).map(|us| self.delay = Duration::from_micros(us)),
            "rnr" => probability(value).map(|p| self.rnr = p),
            "shuffle-completions" if value.is_empty() => {
                self.shuffle_completions = true;
                Ok(())
            }
            "fail-send" => ordinal(value).map(|n| self.fail_send = Some(n)),
            "fail-receive" => ordinal(value).map(|n| self.fail_receive = Some(n)),
            "qp-fatal" => ordinal(value).map(|n| self.qp_fatal = Some(n)),
            "fail-destroy" => self.fail_destroy.set(value),
            "fail-create" => self.fail_create.set(value),
            "max-qps" => number(value).map(|n| self.max_qps = Some(n)),
            "max-mkeys" => number(value).map(|n| self.max_mkeys = Some(n)),
            "max-map-count" => ordinal(value).map(|n| self.max_map_count = Some(n)),
            "port-flap" => port_flap(value).map(|flap| self.port_flap = Some(flap)),
            "remove-after" => number(value).map(|ms| self.remove_after = Some(Duration::from_millis(ms))),
            "fail-firmware" => number(value).map(|ms| self.fail_firmware = Some(Duration::from_millis(ms))),
            "slow" => ordinal(value).map(|us| self.slow = Some(Duration::from_micros(us))),
            "fault" => {
                let found = Defect::ALL.iter().find(|defect| defect.name() == value);
                match found {
                    Some(defect) => {
                        self.defect = Some(*defect);
                        Ok(())
                    }
                    None => return Err(unknown_defect(value)),
                }
            }
            _ => Err("there is no such fault"),
        };
        outcome.map_err(|what| format!("--{name} {value}: {what}"))
    }

    /// Returns the options of which [`Self::set`] makes the same faults.
    pub fn options(&self) -> Vec<(&'static str, String)> {
        let mut options = Vec::new();
        let mut add = |name, value: Option<String>| options.extend(value.map(|value| (name, value)));
        let probability = |p: f64| (p > 0.0).then(|| p.to_string());
        add("loss", probability(self.loss));
        add("duplicate", probability(self.duplication));
        add("reorder", probability(self.reordering));
        add("delay", (!self.delay.is_zero()).then(|| self.delay.as_micros().to_string()));
        add("rnr", probability(self.rnr));
        add("shuffle-completions", self.shuffle_completions.then(String::new));
        add("fail-send", self.fail_send.map(|n| n.to_string()));
        add("fail-receive", self.fail_receive.map(|n| n.to_string()));
        add("qp-fatal", self.qp_fatal.map(|n| n.to_string()));
        for (kind, which) in self.fail_destroy.each() {
            add("fail-destroy", which.text(kind));
        }
        for (kind, which) in self.fail_create.each() {
            add("fail-create", which.text(kind));
        }
        add("max-qps", self.max_qps.map(|n| n.to_string()));
        add("max-mkeys", self.max_mkeys.map(|n| n.to_string()));
        add("max-map-count", self.max_map_count.map(|n| n.to_string()));
        let flap = self.port_flap;
        add("port-flap", flap.map(|f| format!("{}:{}", f.up.as_millis(), f.down.as_millis())));
        add("remove-after", self.remove_after.map(|time| time.as_millis().to_string()));
        add("fail-firmware", self.fail_firmware.map(|time| time.as_millis().to_string()));
        add("fault", self.defect.map(|defect| defect.name().to_owned()));
        add("slow", self.slow.map(|time| time.as_micros().to_string()));
        options
    }
}

impl ByKind {
    /// Returns the commands for objects of this type of the kernel's.
    pub(crate) fn of_type(&self, type_id: u16) -> Which {
        match type_id {
            1 => self.pd,
            3 => self.cq,
            4 => self.qp,
            5 => self.srq,
            6 => self.ah,
            7 => self.mr,
            _ => Which::None,
        }
    }

    fn each(&self) -> [(&'static str, Which); 6] {
        let Self { mr, qp, srq, cq, ah, pd } = *self;
        [("mr", mr), ("qp", qp), ("srq", srq), ("cq", cq), ("ah", ah), ("pd", pd)]
    }

    fn set(&mut self, value: &str) -> Result<(), &'static str> {
        let (kind, which) = match value.split_once(':') {
            Some((kind, nth)) => (kind, Which::Nth(ordinal(nth)?)),
            None => (value, Which::All),
        };
        let field = match kind {
            "mr" => &mut self.mr,
            "qp" => &mut self.qp,
            "srq" => &mut self.srq,
            "cq" => &mut self.cq,
            "ah" => &mut self.ah,
            "pd" => &mut self.pd,
            _ => return Err("must be mr, qp, srq, cq, ah or pd, and `:N` for one of them"),
        };
        *field = which;
        Ok(())
    }
}

fn unknown_defect(value: &str) -> String {
    let mut text = format!("--fault {value}: must be one of");
    for defect in Defect::ALL {
        text += &format!("\n  {:<16} {}", defect.name(), defect.help());
    }
    text
}

impl Which {
    fn text(self, kind: &str) -> Option<String> {
        match self {
            Self::None => None,
            Self::All => Some(kind.to_owned()),
            Self::Nth(nth) => Some(format!("{kind}:{nth}")),
        }
    }
}

fn probability(value: &str) -> Result<f64, &'static str> {
    let probability = value.parse().ok().filter(|p| (0.0..=1.0).contains(p));
    probability.ok_or("a probability is a number from 0 to 1")
}

fn number(value: &str) -> Result<u64, &'static str> {
    // Values up to this limit can be represented in nanoseconds.
    let number = value.parse().ok().filter(|n| *n <= 1 << 40);
    number.ok_or("must be a whole number")
}

fn ordinal(value: &str) -> Result<u64, &'static str> {
    number(value).ok().filter(|n| *n > 0).ok_or("must be a whole number from 1 on")
}

fn port_flap(value: &str) -> Result<PortFlap, &'static str> {
    let times = value.split_once(':').map(|(up, down)| (ordinal(up), ordinal(down)));
    let Some((Ok(up), Ok(down))) = times else {
        return Err("must be UP:DOWN, milliseconds from 1 on");
    };
    Ok(PortFlap { up: Duration::from_millis(up), down: Duration::from_millis(down) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_read_and_written_the_same() {
        let values = ["0.5", "7:9", "7", "qp:3", "torn-cqe", ""];
        let mut all = Faults::default();
        for option in OPTIONS {
            let mut one = Faults::default();
            let value = values.iter().find(|value| one.set(option.name, value).is_ok());
            let value = value.unwrap_or_else(|| panic!("{} takes no value", option.name));
            assert_eq!(value.is_empty(), option.value.is_none(), "{}", option.name);
            assert!(!one.is_none(), "{} does something", option.name);
            assert_eq!(one.options(), [(option.name, (*value).to_owned())]);
            all.set(option.name, value).unwrap();
        }
        let mut again = Faults::default();
        for (name, value) in all.options() {
            again.set(name, &value).unwrap();
        }
        assert_eq!(again, all);
        assert_eq!(all.options().len(), OPTIONS.len());
    }

    #[test]
    fn values_that_mean_nothing_are_refused() {
        for (name, value) in [
            ("loss", "1.5"),
            ("loss", "NaN"),
            ("fail-send", "0"),
            ("fail-destroy", "uar"),
            ("fail-destroy", "mr:0"),
            ("fail-create", "uar"),
            ("max-qps", "few"),
            ("max-map-count", "0"),
            ("port-flap", "5"),
            ("port-flap", "0:5"),
            ("delay", "99999999999999"),
            ("shuffle-completions", "x"),
            ("luck", "1"),
        ] {
            let complaint = Faults::default().set(name, value).unwrap_err();
            assert!(complaint.starts_with(&format!("--{name} {value}: ")), "{complaint}");
        }
    }
}
