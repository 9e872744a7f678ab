//! Resources that the control path runs out of: locked memory, mappings, queue pairs and memory keys. With any of them
//! used up, `ibv_create_qp`, `ibv_create_cq` and `ibv_reg_mr` fail with ENOMEM or EAGAIN.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use doorbell::{BufferPool, Context, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, Sender};

use super::nldev::{self, attributes, find, number, text};
use super::{Level, Patient};
use crate::sysfs;

/// Part of a limit, in percent, from which on it is a cause of trouble.
const NEAR: u64 = 90;

/// Adds the checks.
pub fn examine(patient: &mut Patient, context: &Context) {
    let holders = holders(Path::new("/proc"));
    locked(patient, &holders);
    let most = sysfs::read(Path::new("/proc/sys/vm/max_map_count")).and_then(|text| text.parse().ok());
    mappings(patient, &holders, most);
    match Objects::read(context.name()) {
        Ok(objects) => objects.compare(patient, limits(context), Path::new("/proc")),
        Err(error) => {
            patient.add(
                Level::Note,
                "objects",
                format!("not counted: RDMA netlink answers {error}; rdma resource show asks the same"),
            );
        }
    }
    trial(patient, context);
}

/// A process that has an RDMA device open.
#[derive(Debug, Default, PartialEq, Eq)]
struct Holder {
    pid: u32,
    name: String,
    mappings: u64,
    /// Bytes that it has locked or pinned, and how many it may.
    locked: u64,
    limit: Option<u64>,
}

/// Returns the processes of this root of /proc that have an RDMA device open, where this user may see that.
fn holders(root: &Path) -> Vec<Holder> {
    let pids = sysfs::entries(root).into_iter().filter_map(|name| name.parse::<u32>().ok());
    let uses_device = |pid: &u32| {
        let files = root.join(pid.to_string()).join("fd");
        let is_device =
            |name: &String| fs::read_link(files.join(name)).is_ok_and(|to| to.starts_with("/dev/infiniband"));
        sysfs::entries(&files).iter().any(is_device)
    };
    pids.filter(uses_device).map(|pid| holder(&root.join(pid.to_string()), pid)).collect()
}

fn holder(dir: &Path, pid: u32) -> Holder {
    let status = fs::read_to_string(dir.join("status")).unwrap_or_default();
    let kib = |key: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    };
    let limits = fs::read_to_string(dir.join("limits")).unwrap_or_default();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    Holder {
        pid,
        name: sysfs::read(&dir.join("comm")).unwrap_or_default(),
        mappings: fs::read(dir.join("maps"))
            .map_or(0, |maps| maps.iter().filter(|&&byte| byte == b'\n').count() as u64),
        // The kernel counts pinned pages against the limit, too.
        locked: (kib("VmLck:") + kib("VmPin:")) << 10,
        limit: limit.and_then(|rest| rest.split_whitespace().next()?.parse().ok()),
    }
}

fn near(value: u64, limit: u64) -> bool {
    value.saturating_mul(100) >= limit.saturating_mul(NEAR)
}

fn locked(patient: &mut Patient, holders: &[Holder]) {
    for Holder { pid, name, locked, limit, .. } in holders {
        let Some(limit) = limit.filter(|&limit| *locked > 0 && near(*locked, limit)) else { continue };
        let text = format!(
            "process {pid} ({name}) has locked {} of {} KiB: its next registration fails with ENOMEM; ulimit -l unlimited, or \
             LimitMEMLOCK=infinity of the service",
            locked >> 10,
            limit >> 10
        );
        patient.add(Level::Warning, "locked memory", text);
    }
}

fn mappings(patient: &mut Patient, holders: &[Holder], most: Option<u64>) {
    let Some(most) = most else { return };
    let what = "vm.max_map_count";
    let full: Vec<_> = holders.iter().filter(|holder| near(holder.mappings, most)).collect();
    for Holder { pid, name, mappings, .. } in &full {
        let text = format!(
            "process {pid} ({name}) has {mappings} of {most} mappings: ibv_reg_mr and ibv_create_qp fail with ENOMEM beyond that, \
             since ibv_fork_init (RDMAV_FORK_SAFE) splits mappings: sysctl vm.max_map_count=1048576, or no ibv_fork_init from \
             Linux 5.12 on"
        );
        patient.add(Level::Warning, what, text);
    }
    if full.is_empty() {
        let busiest = holders.iter().max_by_key(|holder| holder.mappings);
        let busiest = busiest.map_or("no process with an RDMA device is visible".to_owned(), |holder| {
            format!("the process with most, {} ({}), has {}", holder.pid, holder.name, holder.mappings)
        });
        patient.add(Level::Ok, what, format!("{most}; {busiest}"));
    }
}

/// Objects of a device, as RDMA netlink counts them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Objects {
    /// By kind: `qp`, `mr`, `cq`, ...
    counts: BTreeMap<String, u64>,
    /// Queue pairs and memory regions of each process.
    owned: BTreeMap<u32, [u64; 2]>,
}

impl Objects {
    fn read(device: &str) -> io::Result<Self> {
        let index = nldev::index(device)?;
        let summaries = nldev::ask(nldev::RES_GET, &[])?;
        let own = |body: &&Vec<u8>| find(body, nldev::DEV_INDEX).and_then(number) == Some(index);
        let counts = summaries.iter().find(own).map(|body| counts(body)).unwrap_or_default();
        let mut objects = Self { counts, ..Self::default() };
        for (kind, command, table) in [(0, nldev::RES_QP_GET, nldev::RES_QP), (1, nldev::RES_MR_GET, nldev::RES_MR)] {
            // Regions are listed to root only on some kernels.
            for body in nldev::ask(command, &[(nldev::DEV_INDEX, index)]).unwrap_or_default() {
                for pid in owners(&body, table) {
                    objects.owned.entry(pid).or_default()[kind] += 1;
                }
            }
        }
        Ok(objects)
    }

    fn compare(&self, patient: &mut Patient, limits: [(&str, u32); 5], proc: &Path) {
        let mut used = Vec::new();
        for (kind, limit) in limits {
            let Some(&count) = self.counts.get(kind) else { continue };
            let limit = u64::from(limit);
            used.push(format!("{count} {kind}"));
            if limit > 0 && near(count, limit) {
                let text = format!(
                    "{count} of {limit} are in use: the next one fails with ENOMEM or EAGAIN; {}",
                    self.busiest()
                );
                patient.add(Level::Warning, format!("objects: {kind}"), text);
            }
        }
        patient.add(Level::Ok, "objects", format!("{} of all processes", used.join(", ")));
        for (&pid, [qps, regions]) in self.owned.iter().filter(|owner| *owner.0 != 0) {
            let Some(state) = ended(proc, pid) else { continue };
            let text = format!(
                "process {pid} {state} and still has {qps} queue pairs and {regions} memory regions: another process may hold its \
                 descriptor (a child after fork), or the kernel waits for the device: dmesg"
            );
            patient.add(Level::Warning, "objects of a process that ended", text);
        }
    }

    fn busiest(&self) -> String {
        let most = self.owned.iter().max_by_key(|(_, [qps, regions])| qps + regions);
        most.map_or("rdma resource show lists the owners".into(), |(pid, [qps, regions])| {
            format!("process {pid} has most: {qps} queue pairs, {regions} memory regions")
        })
    }
}

/// Returns how many objects of each kind the device has at most.
fn limits(context: &Context) -> [(&'static str, u32); 5] {
    let attr = context.attr();
    [("qp", attr.max_qp), ("mr", attr.max_mr), ("cq", attr.max_cq), ("srq", attr.max_srq), ("pd", attr.max_pd)]
}

/// Returns how many objects of each kind a summary has.
fn counts(body: &[u8]) -> BTreeMap<String, u64> {
    let entries = attributes(find(body, nldev::RES_SUMMARY).unwrap_or_default());
    let count = |(_, entry)| {
        let value = find(entry, nldev::RES_SUMMARY_ENTRY_CURR)?.first_chunk()?;
        Some((text(find(entry, nldev::RES_SUMMARY_ENTRY_NAME)?), u64::from_ne_bytes(*value)))
    };
    entries.filter_map(count).collect()
}

/// Returns the owner of each object in a table.
fn owners(body: &[u8], table: u16) -> Vec<u32> {
    let entries = attributes(find(body, table).unwrap_or_default());
    entries.filter_map(|(_, entry)| number(find(entry, nldev::RES_PID)?)).collect()
}

/// Says how a process ended, if it did.
fn ended(proc: &Path, pid: u32) -> Option<&'static str> {
    let Some(stat) = sysfs::read(&proc.join(pid.to_string()).join("stat")) else { return Some("is gone") };
    // The name may have parentheses itself.
    match stat.rsplit_once(") ")?.1.chars().next()? {
        'Z' => Some("is a zombie"),
        'X' => Some("is dead"),
        _ => None,
    }
}

/// Makes one object of each kind.
fn trial(patient: &mut Patient, context: &Context) {
    let made = || -> doorbell::Result<()> {
        let pd = context.alloc_pd()?;
        let _pool = BufferPool::new(&pd, &PoolConfig::new(1, 64))?;
        let _receiver = Receiver::new(&pd, &CqConfig::new(8))?;
        let mut sender = Sender::new(&pd, &CqConfig::new(64))?;
        QueuePair::builder(&QpConfig::rc().max_send_wr(1)).send(&mut sender).build().map(drop)
    };
    let what = "a domain, a region, CQs and a queue pair";
    let Err(error) = made() else { return patient.add(Level::Ok, what, "created") };
    let cause = match &error {
        doorbell::Error::Verbs { source, .. } if source.raw_os_error() == Some(libc::ENOMEM) => {
            ": locked memory, mappings or objects are used up, see the checks above; dmesg has the command if the firmware refused it"
        }
        doorbell::Error::Verbs { source, .. } if source.raw_os_error() == Some(libc::EAGAIN) => {
            ": the firmware has no memory key left: regions of programs that were killed or that leak them (rdma resource show), else \
             reload the driver"
        }
        _ => "",
    };
    patient.add(Level::Failure, what, format!("{error}{cause}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn reported(examine: impl Fn(&mut Patient)) -> Vec<(Level, String)> {
        let mut patient = Patient { device: "mlx5_0".into(), checks: Vec::new() };
        examine(&mut patient);
        patient.checks.into_iter().map(|check| (check.level, check.text)).collect()
    }

    #[test]
    fn processes_with_a_device_are_seen_with_their_limits() {
        let root = std::env::temp_dir().join(format!("doorbell-doctor-{}", std::process::id()));
        for (pid, file) in [("7", "/dev/infiniband/uverbs0"), ("8", "/dev/null")] {
            let dir = root.join(pid);
            fs::create_dir_all(dir.join("fd")).unwrap();
            symlink(file, dir.join("fd/3")).unwrap();
            fs::write(dir.join("comm"), "worker\n").unwrap();
            fs::write(dir.join("status"), "Name:\tworker\nVmLck:\t       4 kB\nVmPin:\t      56 kB\n").unwrap();
            fs::write(
                dir.join("limits"),
                "Max locked memory         65536                65536                bytes\n",
            )
            .unwrap();
            fs::write(dir.join("maps"), "a\nb\nc\n").unwrap();
            fs::write(dir.join("stat"), format!("{pid} (a) b) Z 1")).unwrap();
        }
        let found = holders(&root);
        let ends = [ended(&root, 7), ended(&root, 9)];
        fs::remove_dir_all(&root).unwrap();
        let one = Holder { pid: 7, name: "worker".into(), mappings: 3, locked: 60 << 10, limit: Some(65536) };
        assert_eq!(found, [one]);
        assert_eq!(ends, [Some("is a zombie"), Some("is gone")]);
        let locked = reported(|patient| locked(patient, &found));
        assert!(locked.len() == 1 && locked[0].1.contains("60 of 64 KiB"), "{locked:?}");
        for (most, level) in [(3, Level::Warning), (4, Level::Ok)] {
            assert_eq!(reported(|patient| mappings(patient, &found, Some(most)))[0].0, level);
        }
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = (4 + value.len()) as u16;
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn objects_are_counted_by_kind_and_by_owner() {
        let entry = |name: &[u8], count: u64| {
            let name = attribute(nldev::RES_SUMMARY_ENTRY_NAME, name);
            attribute(16, &[name, attribute(nldev::RES_SUMMARY_ENTRY_CURR, &count.to_ne_bytes())].concat())
        };
        let body = attribute(nldev::RES_SUMMARY, &[entry(b"qp\0", 4), entry(b"mr\0", 9)].concat());
        assert_eq!(counts(&body), BTreeMap::from([("mr".to_owned(), 9), ("qp".to_owned(), 4)]));
        let qp = |pid: u32| attribute(20, &attribute(nldev::RES_PID, &pid.to_ne_bytes()));
        let body = attribute(nldev::RES_QP, &[qp(7), qp(7), attribute(20, &[])].concat());
        assert_eq!(owners(&body, nldev::RES_QP), [7, 7]);
        assert!(counts(&[1]).is_empty() && owners(&[], nldev::RES_QP).is_empty());
    }

    /// A device may say no limit, and objects of the kernel belong to process 0.
    #[test]
    fn objects_near_their_limit_and_of_dead_processes_are_reported() {
        let counts = [("qp", 0), ("mr", 90), ("cq", 89)].map(|(kind, count)| (kind.to_owned(), count));
        let objects = Objects { counts: counts.into(), owned: [(0, [1, 1]), (9, [2, 3])].into() };
        let limits = [("qp", 0), ("mr", 100), ("cq", 100), ("srq", 1), ("pd", 1)];
        let found = reported(|patient| objects.compare(patient, limits, Path::new("/nowhere")));
        let texts: Vec<&str> = found.iter().map(|(_, text)| text.split(": ").next().unwrap()).collect();
        let gone = "process 9 is gone and still has 2 queue pairs and 3 memory regions";
        assert_eq!(texts, ["90 of 100 are in use", "0 qp, 90 mr, 89 cq of all processes", gone]);
    }
}
