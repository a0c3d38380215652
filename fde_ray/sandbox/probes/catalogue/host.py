"""Ways to what is the host's: its files, devices, namespaces and kernel."""

from __future__ import annotations

from typing import Any

from fde_ray.sandbox.probes.records import Attempt, Control, Group, Verdict

_SYSTEM = "it would change the whole machine"


def _attempt(
    name: str,
    what: str,
    call: str,
    control: Control = Control.LOOSE,
    expected: Verdict = Verdict.BLOCKED,
    watched: Any = "",
    unsafe: str = "",
    **options: Any,
) -> Attempt:
    return Attempt(
        id=name, group=Group.HOST, what=what, call=call, control=control, expected=expected,
        watched=watched, unsafe=unsafe, options=options,
    )  # fmt: skip


def _opens(name: str, what: str, *paths: str, write: bool = False, unsafe: str = "") -> Attempt:
    control = Control.UNSAFE if unsafe else Control.LOOSE
    return _attempt(
        name, what, "host.open_any", control, unsafe=unsafe, paths=list(paths), write=write
    )


_NO_HOST = "a pod with it would be the host's"

_FILES = (
    _attempt(
        "host_mounts", "a mount that is not the pod's own", "host.foreign_mounts", Control.LOOSE
    ),
    _opens(
        "service_account", "token of a service account",
        "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "/run/secrets/kubernetes.io/serviceaccount/token",
    ),
    _opens(
        "host_files", "files that only a node has", "/etc/kubernetes/admin.conf",
        "/var/lib/kubelet/config.yaml", "/etc/shadow", "/host/etc/passwd", "/rootfs/etc/passwd",
    ),
    _attempt(
        "runtime_socket", "socket of the container runtime", "host.connect_any", Control.UNSAFE,
        unsafe=_NO_HOST,
        paths=[
            "/run/containerd/containerd.sock", "/var/run/docker.sock", "/run/crio/crio.sock",
            "/var/run/dockershim.sock", "/run/podman/podman.sock",
            "/var/lib/kubelet/device-plugins/kubelet.sock",
        ],
    ),
    _attempt("proc_root", "another root behind /proc", "host.own_root", Control.UNSAFE,
             unsafe=_NO_HOST),
    _attempt("file_handle", "a file by its handle, past all mounts", "host.by_handle"),
    _attempt(
        "write_root", "files of the image, its programs and libraries", "host.write_any",
        folders=["/", "/etc", "/usr/bin", "/usr/lib", "/usr/local/bin", "/opt", "/root", "/var"],
    ),
)  # fmt: skip
_DEVICES = (
    _opens(
        "memory_devices", "memory of the machine", "/dev/mem", "/dev/kmem", "/dev/port",
        "/proc/kcore", unsafe="reading the memory of the machine",
    ),
    _opens(
        "disk_devices", "disks of the machine", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/xvda",
        "/dev/dm-0", "/dev/loop-control", "/dev/loop0", "/dev/mapper/control",
        unsafe="opening the disks of the machine",
    ),
    _opens(
        "kernel_devices", "devices that reach into the kernel", "/dev/kvm", "/dev/kmsg",
        "/dev/vhost-net", "/dev/uinput", "/dev/vfio/vfio",
        unsafe="a pod with the host's devices",
    ),
    _attempt(
        "fuse", "a file system of one's own making", "host.mount_fuse", Control.UNSAFE,
        expected=Verdict.CONFINED, watched="trace", unsafe="a pod with the host's devices",
    ),
    _attempt(
        "tunnel_device", "a network link of one's own making", "host.make_link", Control.UNSAFE,
        expected=Verdict.CONFINED, watched="trace", unsafe="a pod with the host's devices",
    ),
    _attempt("make_device", "a device made anew", "host.make_device"),
    _attempt("hypervisor_socket", "host of the virtual machine", "host.vsock", Control.UNSAFE,
             unsafe="nobody listens there that we know of"),
)  # fmt: skip
_PRIVILEGES = (
    _attempt("set_uid", "becoming root", "privileges.set_uid"),
    _attempt("set_uid_program", "rights of a set-uid program", "privileges.new_privileges"),
    _attempt("capabilities", "a capability that was left", "privileges.capabilities"),
    _attempt(
        "join_namespace", "namespaces of somebody else", "privileges.join_namespace",
        Control.UNSAFE, unsafe="a pod in the host's namespaces",
    ),
    _attempt(
        "user_namespace", "root of a user namespace", "privileges.user_namespace",
        expected=Verdict.CONFINED, watched="trace",
    ),
    _attempt(
        "all_namespaces", "a whole machine of one's own", "privileges.all_namespaces",
        expected=Verdict.CONFINED, watched="trace",
    ),
    _attempt("mount", "mounting a file system", "privileges.mount_tmpfs",
             expected=Verdict.CONFINED, watched="trace"),
    _attempt(
        "mount_as_root", "the same as root of a user namespace",
        "privileges.mount_in_user_namespace", expected=Verdict.CONFINED, watched="trace",
    ),
    _attempt("mount_new_calls", "the same by the newer calls", "privileges.new_mount_api"),
    _attempt("clone_mount", "a copy of the root's mount", "privileges.clone_mount"),
    _attempt(
        "control_groups", "mounting the control groups", "privileges.mount_cgroup", Control.UNSAFE,
        expected=Verdict.CONFINED, watched="trace", unsafe=_SYSTEM,
    ),
    _attempt("swap_root", "another root in place of this", "privileges.swap_root"),
    _attempt("leave_root", "leaving a root by a descriptor", "privileges.change_root",
             Control.UNSAFE, unsafe="it ends in the own root wherever the kernel is sound"),
)  # fmt: skip
_KERNEL = (
    _attempt("load_module", "loading a module", "kernel.load_module", Control.UNSAFE,
             unsafe=_SYSTEM),
    _attempt("load_module_file", "loading a module from a file", "kernel.load_module_file",
             Control.UNSAFE, unsafe=_SYSTEM),
    _attempt("bpf_map", "memory in the kernel by bpf", "kernel.bpf_map"),
    _attempt("bpf_program", "code in the kernel by bpf", "kernel.bpf_program"),
    _attempt("perf_counter", "counters of the processor", "kernel.perf_counter"),
    _attempt("perf_everyone", "the same of all processes of the machine", "kernel.perf_counter",
             everyone=True),
    _attempt("key_ring", "the kernel's ring of keys", "kernel.add_key"),
    _attempt("kexec", "another kernel at the next start", "kernel.kexec", Control.UNSAFE,
             unsafe=_SYSTEM),
    _attempt("io_ring", "a ring of system calls past the filter", "kernel.io_ring"),
    _attempt("fault_handler", "handling the kernel's page faults", "kernel.fault_handler"),
    _attempt("io_ports", "ports of the machine", "kernel.io_ports", Control.UNSAFE,
             unsafe=_SYSTEM),
    _attempt("kernel_log", "the kernel's log", "kernel.kernel_log", expected=Verdict.CONFINED,
             watched="log"),
    _attempt("kernel_addresses", "addresses in the kernel", "kernel.kernel_addresses"),
    _attempt("reboot", "a reboot", "kernel.reboot", Control.UNSAFE, unsafe=_SYSTEM),
    _attempt("swap_space", "adding swap", "kernel.swap", Control.UNSAFE, unsafe=_SYSTEM),
    _attempt("accounting", "a line of every process of the machine", "kernel.account",
             Control.UNSAFE, unsafe=_SYSTEM),
    _attempt("host_name", "another host name", "kernel.host_name"),
    _attempt("add_route", "another route", "kernel.add_route"),
    _attempt("machine_time", "the machine's clock", "kernel.set_time", Control.UNSAFE,
             unsafe=_SYSTEM),
    _opens("core_pattern", "a program of one's own at the next core dump",
           "/proc/sys/kernel/core_pattern", write=True, unsafe=_SYSTEM),
    _opens("module_helper", "a program of one's own at the next missing module",
           "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/sys/kernel/uevent_helper",
           "/proc/sys/kernel/poweroff_cmd", write=True, unsafe=_SYSTEM),
    _opens("binary_formats", "a program of one's own for any binary",
           "/proc/sys/fs/binfmt_misc/register", write=True, unsafe=_SYSTEM),
    _opens("system_request", "a crash of the machine at a keystroke", "/proc/sysrq-trigger",
           "/proc/sys/kernel/sysrq", "/proc/sys/kernel/panic", write=True, unsafe=_SYSTEM),
    _opens("kernel_settings", "settings of the kernel", "/proc/sys/vm/overcommit_memory",
           "/proc/sys/vm/drop_caches", "/proc/sys/kernel/randomize_va_space",
           "/proc/sys/net/ipv4/ip_forward", write=True, unsafe=_SYSTEM),
    _opens("sys_writes", "writing below /sys", "/sys/kernel/profiling", "/sys/power/state",
           "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/module/kernel/parameters/panic",
           "/sys/class/net/lo/mtu", write=True, unsafe=_SYSTEM),
    _opens("cgroup_files", "loosening its own limits, or leaving its control group",
           "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory.max",
           "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/cgroup.procs",
           "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/pids/pids.max",
           "/sys/fs/cgroup/pids/cgroup.procs", write=True, unsafe=_SYSTEM),
)  # fmt: skip

ATTEMPTS = (*_FILES, *_DEVICES, *_PRIVILEGES, *_KERNEL)
