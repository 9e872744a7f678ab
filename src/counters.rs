//! Counters that a device keeps by itself.

use std::path::Path;
use std::{fs, io};

use crate::context::Context;
use crate::error::{Error, Result};

impl Context {
    /// Returns how many messages arrived on a port without a posted receive, on all queues of all programs, since the
    /// driver was loaded (`hw_counters/out_of_buffer` in sysfs). Returns `None` if the driver has no such counter;
    /// the driver of mlx5 adapters has it.
    ///
    /// A connected peer sends such a message again later (RNR); a datagram is dropped. If the number grows while a
    /// program runs, its queues are too short or refilled too late.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// let context = doorbell::open("mlx5_0")?;
    /// match context.out_of_buffer(1)? {
    ///     Some(count) => println!("{count} messages without a receive"),
    ///     None => println!("{} does not count them", context.name()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a port that the device does not have; [`Error::Verbs`] when sysfs cannot be read.
    pub fn out_of_buffer(&self, port: u8) -> Result<Option<u64>> {
        Error::check_range("port", port.into(), 1, self.attr().phys_port_cnt.into())?;
        read(&self.sysfs_path(), port)
            .map_err(|source| Error::verbs("read of hw_counters/out_of_buffer", self.name(), source))
    }
}

fn read(device: &Path, port: u8) -> io::Result<Option<u64>> {
    match fs::read_to_string(device.join(format!("ports/{port}/hw_counters/out_of_buffer"))) {
        Ok(text) => text.trim().parse().map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_of_a_port_is_read_and_one_that_is_not_there_is_none() {
        let device = std::env::temp_dir().join(format!("doorbell-counters-{}", std::process::id()));
        let counters = device.join("ports/2/hw_counters");
        fs::create_dir_all(&counters).unwrap();
        fs::write(counters.join("out_of_buffer"), "1234\n").unwrap();
        assert_eq!(read(&device, 2).unwrap(), Some(1234));
        assert_eq!(read(&device, 1).unwrap(), None);
        fs::write(counters.join("out_of_buffer"), "N/A\n").unwrap();
        assert!(read(&device, 2).is_err());
        fs::remove_dir_all(&device).unwrap();
    }
}
