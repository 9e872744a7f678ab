//! libmlx5 is found at run time, and a program starts and works without it.

use rdma_core_sys::{IBV_WC_SUCCESS, LoadError, Mlx5dv, ibv_wc_status_str};
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

/// Runs one of the ignored tests below in a process of its own.
fn child(test: &str, adjust: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", test]);
    adjust(&mut command);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}: {printed}");
    assert!(printed.contains("1 passed"), "{test}: {printed}");
    output
}

/// The shared libraries that the loader gives a program before it runs.
fn loaded_at_start() -> String {
    let program = env::current_exe().unwrap();
    let output = Command::new(program).env("LD_TRACE_LOADED_OBJECTS", "1").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn libmlx5_is_not_among_the_libraries_that_a_program_needs() {
    let libraries = loaded_at_start();
    assert!(libraries.contains("libibverbs.so.1"), "{libraries}");
    assert!(!libraries.contains("libmlx5"), "{libraries}");
}

#[test]
fn a_program_starts_and_works_where_libmlx5_cannot_be_loaded() {
    // The loader looks here first, takes the file for the library and gives up.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-libmlx5");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("libmlx5.so.1"), "").unwrap();
    child("without_libmlx5", |command| {
        command.env("LD_LIBRARY_PATH", &directory);
    });
}

#[test]
fn a_program_starts_and_works_where_libmlx5_is_not_installed() {
    // In a mount namespace, a directory of links to everything in the system's library directory
    // but libmlx5 and the drivers takes that directory's place.
    let libraries = libibverbs().parent().unwrap().to_owned();
    let scene = Path::new(env!("CARGO_TARGET_TMPDIR")).join("namespace");
    fs::create_dir_all(&scene).unwrap();
    let script = "set -e\n\
        mount -t tmpfs none \"$SCENE\"\n\
        mkdir \"$SCENE/real\" \"$SCENE/shown\"\n\
        mount --bind \"$LIBRARIES\" \"$SCENE/real\"\n\
        ln -s \"$SCENE\"/real/* \"$SCENE/shown/\"\n\
        rm \"$SCENE\"/shown/libmlx5* \"$SCENE/shown/libibverbs\"\n\
        mount --bind \"$SCENE/shown\" \"$LIBRARIES\"\n\
        exec \"$0\" \"$@\"\n";
    let unshare = ["--map-root-user", "--mount"];
    let possible = Command::new("unshare").args(unshare).arg("true").status();
    if !possible.is_ok_and(|status| status.success()) {
        println!("skipped: mount namespaces are not permitted here");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(unshare).args(["sh", "-c", script]).arg(env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "without_libmlx5"]);
    command.env("SCENE", &scene).env("LIBRARIES", &libraries);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("1 passed"), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("No such file or directory"), "{printed}");
}

#[test]
#[ignore = "run by the tests above where libmlx5 is absent"]
fn without_libmlx5() {
    let error = Mlx5dv::get().unwrap_err();
    println!("{error}");
    let LoadError::Library { reason, .. } = &error else { panic!("{error:?}") };
    assert!(reason.contains("libmlx5.so.1"), "{reason}");
    assert!(error.to_string().contains("ibverbs-providers"), "{error}");
    // A second attempt is made, and fails the same way.
    assert_eq!(Mlx5dv::get().unwrap_err(), error);

    // libibverbs works all the same.
    let mut count = -1;
    // SAFETY: the list is freed once; the string is a constant.
    let status = unsafe {
        let list = rdma_core_sys::ibv_get_device_list(&mut count);
        if !list.is_null() {
            rdma_core_sys::ibv_free_device_list(list);
        }
        CStr::from_ptr(ibv_wc_status_str(IBV_WC_SUCCESS))
    };
    assert_eq!(status.to_str(), Ok("success"));
}

/// The file of libibverbs that this program uses.
fn libibverbs() -> PathBuf {
    // SAFETY: the structure is filled in before it is read.
    let name = unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        let address = rdma_core_sys::ibv_get_device_list as *const c_void;
        assert_ne!(libc::dladdr(address, &mut info), 0);
        CStr::from_ptr(info.dli_fname)
    };
    fs::canonicalize(name.to_str().unwrap()).unwrap()
}

/// The driver that libibverbs loads for mlx5 devices.
fn driver() -> CString {
    let directory = libibverbs().parent().unwrap().join("libibverbs");
    let driver = fs::read_dir(&directory)
        .unwrap_or_else(|e| panic!("{}: {e}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().as_bytes().starts_with(b"libmlx5-rdmav"))
        .expect("the tests need libmlx5 (Debian: package ibverbs-providers)");
    CString::new(driver.as_os_str().as_bytes()).unwrap()
}

/// Loads a library as libibverbs loads its drivers.
fn load(name: &CStr) -> *mut c_void {
    // SAFETY: a library of the system.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{name:?}");
    handle
}

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}

#[test]
fn functions_have_the_versions_that_programs_link_to() {
    let loaded = Mlx5dv::get().unwrap();
    let library = load(c"libmlx5.so.1");
    for (address, symbol, version) in [
        (loaded.is_supported as usize, c"mlx5dv_is_supported", c"MLX5_1.8"),
        (loaded.open_device as usize, c"mlx5dv_open_device", c"MLX5_1.7"),
        (loaded.query_device as usize, c"mlx5dv_query_device", c"MLX5_1.0"),
        (loaded.query_port as usize, c"_mlx5dv_query_port", c"MLX5_1.19"),
        // There is an older one, MLX5_1.0, with another structure.
        (loaded.init_obj as usize, c"mlx5dv_init_obj", c"MLX5_1.2"),
        (loaded.create_cq as usize, c"mlx5dv_create_cq", c"MLX5_1.1"),
        (loaded.create_qp as usize, c"mlx5dv_create_qp", c"MLX5_1.3"),
        (loaded.set_context_attr as usize, c"mlx5dv_set_context_attr", c"MLX5_1.2"),
        (loaded.get_clock_info as usize, c"mlx5dv_get_clock_info", c"MLX5_1.4"),
        (loaded.devx_alloc_uar as usize, c"mlx5dv_devx_alloc_uar", c"MLX5_1.7"),
        (loaded.devx_free_uar as usize, c"mlx5dv_devx_free_uar", c"MLX5_1.7"),
        (loaded.devx_general_cmd as usize, c"mlx5dv_devx_general_cmd", c"MLX5_1.7"),
        (loaded.devx_obj_create as usize, c"mlx5dv_devx_obj_create", c"MLX5_1.7"),
        (loaded.devx_obj_query as usize, c"mlx5dv_devx_obj_query", c"MLX5_1.7"),
        (loaded.devx_obj_modify as usize, c"mlx5dv_devx_obj_modify", c"MLX5_1.7"),
        (loaded.devx_obj_destroy as usize, c"mlx5dv_devx_obj_destroy", c"MLX5_1.7"),
        (loaded.devx_cq_query as usize, c"mlx5dv_devx_cq_query", c"MLX5_1.8"),
        (loaded.devx_cq_modify as usize, c"mlx5dv_devx_cq_modify", c"MLX5_1.8"),
        (loaded.devx_qp_query as usize, c"mlx5dv_devx_qp_query", c"MLX5_1.8"),
        (loaded.devx_qp_modify as usize, c"mlx5dv_devx_qp_modify", c"MLX5_1.8"),
        (loaded.devx_srq_query as usize, c"mlx5dv_devx_srq_query", c"MLX5_1.8"),
        (loaded.devx_srq_modify as usize, c"mlx5dv_devx_srq_modify", c"MLX5_1.8"),
        (loaded.devx_wq_query as usize, c"mlx5dv_devx_wq_query", c"MLX5_1.8"),
        (loaded.devx_wq_modify as usize, c"mlx5dv_devx_wq_modify", c"MLX5_1.8"),
        (loaded.devx_ind_tbl_query as usize, c"mlx5dv_devx_ind_tbl_query", c"MLX5_1.8"),
        (loaded.devx_ind_tbl_modify as usize, c"mlx5dv_devx_ind_tbl_modify", c"MLX5_1.8"),
        (loaded.devx_umem_reg as usize, c"mlx5dv_devx_umem_reg", c"MLX5_1.7"),
        (loaded.devx_umem_reg_ex as usize, c"mlx5dv_devx_umem_reg_ex", c"MLX5_1.19"),
        (loaded.devx_umem_dereg as usize, c"mlx5dv_devx_umem_dereg", c"MLX5_1.7"),
        (loaded.devx_query_eqn as usize, c"mlx5dv_devx_query_eqn", c"MLX5_1.7"),
        (loaded.devx_create_cmd_comp as usize, c"mlx5dv_devx_create_cmd_comp", c"MLX5_1.9"),
        (loaded.devx_destroy_cmd_comp as usize, c"mlx5dv_devx_destroy_cmd_comp", c"MLX5_1.9"),
        (loaded.devx_obj_query_async as usize, c"mlx5dv_devx_obj_query_async", c"MLX5_1.9"),
        (loaded.devx_get_async_cmd_comp as usize, c"mlx5dv_devx_get_async_cmd_comp", c"MLX5_1.9"),
        (loaded.devx_create_event_channel as usize, c"mlx5dv_devx_create_event_channel", c"MLX5_1.11"),
        (loaded.devx_destroy_event_channel as usize, c"mlx5dv_devx_destroy_event_channel", c"MLX5_1.11"),
        (loaded.devx_subscribe_devx_event as usize, c"mlx5dv_devx_subscribe_devx_event", c"MLX5_1.11"),
        (loaded.devx_subscribe_devx_event_fd as usize, c"mlx5dv_devx_subscribe_devx_event_fd", c"MLX5_1.11"),
        (loaded.devx_get_event as usize, c"mlx5dv_devx_get_event", c"MLX5_1.11"),
    ] {
        // SAFETY: an open handle and two strings.
        let expected = unsafe { dlvsym(library, symbol.as_ptr(), version.as_ptr()) };
        assert_eq!(address, expected as usize, "{symbol:?}");
    }
}

/// The file that a function was loaded from, and where it lies in memory.
fn origin(function: usize) -> (PathBuf, usize) {
    // SAFETY: the structure is filled in before it is read.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        assert_ne!(libc::dladdr(function as *const c_void, &mut info), 0);
        let name = CStr::from_ptr(info.dli_fname).to_str().unwrap();
        (PathBuf::from(name), info.dli_fbase as usize)
    }
}

#[test]
fn the_functions_are_those_of_the_driver_whoever_is_loaded_first() {
    child("driver_first", |_| {});
    child("library_first", |_| {});
}

#[test]
#[ignore = "run by the test above in a process of its own"]
fn driver_first() {
    let driver = load(&driver());
    same_object(driver);
}

#[test]
#[ignore = "run by the test above in a process of its own"]
fn library_first() {
    Mlx5dv::get().unwrap();
    same_object(load(&driver()));
}

fn same_object(driver: *mut c_void) {
    // SAFETY: an open handle and a string.
    let of_driver = unsafe { libc::dlsym(driver, c"mlx5dv_query_device".as_ptr()) };
    let ours = Mlx5dv::get().unwrap().query_device as usize;
    assert_eq!(origin(ours), origin(of_driver as usize));
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let copies = maps.lines().filter(|l| l.contains("libmlx5") && l.contains(" r-xp ")).count();
    assert_eq!(copies, 1, "{maps}");
}
