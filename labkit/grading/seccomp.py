"""The system calls that a learner's process may not make: a filter of our own, a dozen instructions of BPF a rule.

A list of what is denied, not of what is allowed: torch, numpy and IPython make most of the calls there are, and what
they may reach is decided by namespaces. Denied is what opens the kernel's rarely used doors (other namespaces, mounts,
tracing, bpf, io_uring, keys, modules), and memory that nobody counts (memfd, System V segments and queues). A denied
call fails with EPERM, which Python raises as PermissionError. clone3, whose flags a filter cannot read, is answered
with ENOSYS, upon which the C library takes clone. Numbers: Linux v6.12, arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h.
"""

import ctypes
import errno
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF_LD|W|ABS, JMP|JEQ, JGE, JSET, RET
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 32  # offsets in struct seccomp_data
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_X32 = 0x40000000  # x86_64 kernels have a second set of calls from this number on
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME
_FAMILIES, _NETLINK, _ROUTE = (1, 2, 10), 16, 0  # AF_UNIX, AF_INET, AF_INET6; of AF_NETLINK what lists interfaces
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

# name: (number on x86_64, number on aarch64); None: the architecture has no such call.
_DENIED = {
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "modify_ldt": (154, None),
    "pivot_root": (155, 41),
    "_sysctl": (156, None),
    "adjtimex": (159, 171),
    "chroot": (161, 51),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "create_module": (174, None),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "clock_settime": (227, 112),
    "mq_open": (240, 180),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "unshare": (272, 97),
    "vmsplice": (278, 75),
    "move_pages": (279, 239),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "memfd_create": (319, 279),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443),
    "memfd_secret": (447, 447),
    "process_mrelease": (448, 448),
    "map_shadow_stack": (453, 453),
    "open_tree_attr": (467, 467),
}
_CLONE, _CLONE3, _SOCKET = (56, 220), (435, 435), (41, 198)
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # the column above, and AUDIT_ARCH_*


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def supported(machine: str) -> bool:
    """Whether there is a filter for an architecture, as platform.machine() names it."""
    return machine in _MACHINES


def program(machine: str) -> bytes:
    """The filter for an architecture, as the kernel takes it: 8 bytes an instruction. KeyError for another."""
    column, audit = _MACHINES[machine]
    eperm, enosys = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    code = [_load(_ARCHITECTURE), _jump(_EQUAL, audit, 1, 0), _return(_KILL), _load(_NUMBER)]
    code += [_jump(_AT_LEAST, _X32, 0, 1), _return(_KILL)] if machine == "x86_64" else []
    code += [*_when(_CLONE3[column], [_return(enosys)])]
    for numbers in _DENIED.values():
        if numbers[column] is not None:
            code += _when(numbers[column], [_return(eperm)])
    flags = [_load(_FIRST_ARGUMENT), _jump(_ANY_BIT, _NEW_NAMESPACES & ~0x80, 0, 1), _return(eperm), _return(_ALLOW)]
    code += _when(_CLONE[column], flags)
    families = [_load(_FIRST_ARGUMENT)]
    for family in _FAMILIES:
        families += [_jump(_EQUAL, family, 0, 1), _return(_ALLOW)]
    families += [_jump(_EQUAL, _NETLINK, 1, 0), _return(eperm), _load(_THIRD_ARGUMENT), _jump(_EQUAL, _ROUTE, 0, 1)]
    code += _when(_SOCKET[column], [*families, _return(_ALLOW), _return(eperm)])
    return b"".join([*code, _return(_ALLOW)])


def install() -> None:
    """Put the filter on this process and all that it will start, for good. OSError where the kernel refuses."""
    code = program(platform.machine())
    filled = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(filled), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    """struct sock_filter."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, 0, 0, offset)


def _jump(kind: int, value: int, if_true: int, if_false: int) -> bytes:
    return _instruction(kind, if_true, if_false, value)


def _return(what: int) -> bytes:
    return _instruction(_RETURN, 0, 0, what)


def _when(number: int, then: list[bytes]) -> list[bytes]:
    """Instructions for one call; the number of the call is loaded, and `then` ends with a return."""
    return [_jump(_EQUAL, number, 0, len(then)), *then]
