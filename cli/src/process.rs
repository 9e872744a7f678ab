//! Processors of this process, and its limit of locked memory.

use std::path::Path;

use serde::Serialize;

use crate::sysfs;

/// Properties of this process that matter for a device.
#[derive(Serialize)]
pub struct Process {
    /// The CPU that it runs on, and its NUMA node.
    pub cpu: Option<u32>,
    pub numa_node: Option<u32>,
    /// The NUMA nodes that its affinity lets it run on.
    pub allowed_numa_nodes: Vec<u32>,
    /// `RLIMIT_MEMLOCK` in bytes; `None` without limit.
    pub memlock_limit: Option<u64>,
}

impl Process {
    pub fn this() -> Self {
        let (cpu, numa_node) = running_on().unzip();
        let allowed = allowed_cpus();
        let mut allowed_numa_nodes = sysfs::numa_nodes(Path::new("/sys"));
        allowed_numa_nodes.retain(|(_, cpus)| cpus.iter().any(|cpu| allowed.contains(cpu)));
        Self {
            cpu,
            numa_node,
            allowed_numa_nodes: allowed_numa_nodes.into_iter().map(|(node, _)| node).collect(),
            memlock_limit: memlock_limit(),
        }
    }

    /// Returns an advice if the process may run on another NUMA node than a device on `node`.
    pub fn numa_warning(&self, node: u32) -> Option<String> {
        let here = self.numa_node?;
        let elsewhere = self.allowed_numa_nodes.iter().any(|&allowed| allowed != node);
        let run = format!("run on its node: numactl --cpunodebind={node} --membind={node}");
        if here != node {
            Some(format!("the device is on NUMA node {node}, and this process on {here}: {run}"))
        } else if elsewhere {
            Some(format!("this process may be moved away from NUMA node {node} of the device: {run}"))
        } else {
            None
        }
    }
}

fn running_on() -> Option<(u32, u32)> {
    let (mut cpu, mut node) = (0, 0);
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: two numbers to write to; the third argument is unused since Linux 2.6.24.
    let result = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, nothing) };
    (result == 0).then_some((cpu, node))
}

/// The processors that this thread may run on.
pub fn allowed_cpus() -> Vec<u32> {
    // SAFETY: a set of bits, empty.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a writable set of that size.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
        return Vec::new();
    }
    let cpus = 0..libc::CPU_SETSIZE as u32;
    // SAFETY: below the size of the set.
    cpus.filter(|&cpu| unsafe { libc::CPU_ISSET(cpu as usize, &set) }).collect()
}

/// Lets this thread run on these processors only.
pub fn run_on(cpus: &[u32]) -> std::io::Result<()> {
    // SAFETY: a set of bits, empty.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as u32) {
        // SAFETY: below the size of the set.
        unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    }
    // SAFETY: a set of that size.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a writable structure.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(numa_node: Option<u32>, allowed: &[u32]) -> Process {
        let allowed_numa_nodes = allowed.to_vec();
        Process { cpu: Some(0), numa_node, allowed_numa_nodes, memlock_limit: None }
    }

    #[test]
    fn a_process_that_is_or_may_be_on_another_node_is_warned() {
        let warning = process(Some(0), &[0, 1]).numa_warning(1).unwrap();
        assert!(warning.contains("on NUMA node 1, and this process on 0"), "{warning}");
        assert!(warning.contains("--cpunodebind=1"), "{warning}");
        let warning = process(Some(1), &[0, 1]).numa_warning(1).unwrap();
        assert!(warning.contains("may be moved away"), "{warning}");
        assert_eq!(process(Some(1), &[1]).numa_warning(1), None);
        assert_eq!(process(None, &[]).numa_warning(1), None);
    }

    #[test]
    fn this_process_runs_on_a_cpu_that_it_may_run_on() {
        let (cpu, _) = running_on().unwrap();
        let all = allowed_cpus();
        assert!(all.contains(&cpu));
        run_on(&[cpu]).unwrap();
        assert_eq!(allowed_cpus(), [cpu]);
        run_on(&all).unwrap();
        assert_eq!(allowed_cpus(), all);
        assert!(run_on(&[]).is_err(), "nowhere");
    }
}
