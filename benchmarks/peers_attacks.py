"""Our attacks beside torchattacks, foolbox and ART: same weights, images and settings.

    python benchmarks/peers_attacks.py --peer-python VENV/bin/python [--images 200] [--only pgd]

ResNet-32 on CIFAR-10 (files of JAXROBUST_DATA), first test images that it classes rightly. Each
library runs in a process of its own, all children of this one, and they take turns attack by
attack, so that a busy machine slows all of them alike. The peers' environment needs torch,
torchattacks, foolbox, adversarial-robustness-toolbox and packaging; ours needs none of them.

The network is so sure of some images that 1 - p is 0 in float32, and with it the label's share of
the cross-entropy gradient: the peers' FGSM then steps in another direction. Ours computes the slope
exactly; ``--peer-double`` gives the peers float64, where they do too.

Printed for each attack and library: share of images fooled, mean distance where fooled (and over
the images that all libraries fooled), and seconds, the least of the runs (ours without compiling).
``pgd20_gradients`` is no attack: 20 bare gradients in JAX and in torch, what PGD-20 cannot beat.

Found on two CPU cores with JAX 0.10, torch 2.14, torchattacks 3.5, foolbox 3.3 and ART 1.20, on 200
images (CW: 30), radii in units of 1/255 for linf; share fooled, or mean distance, ours first:

    FGSM linf 8, 1          87.0%, 50.5%; peers in float64 the same, in float32 81.0% and 49.0%
    PGD-20 linf 8, 0.5      100%, 40.0% in all four
    PGD-20 l2 0.1           59.5%; torchattacks 60.0%, foolbox and ART 59.0%
    MI-FGSM linf 8, 0.5     100% in all; 33.0%; 33.0%, 32.5%, 33.0%
    DeepFool l2             100% at 0.1264; torchattacks 93%, at 0.1240 where ours needs 0.1238;
                            foolbox 100% at 0.1266, ART 100% at 0.1278
    DeepFool linf           100% at 0.00370; foolbox 100% at 0.00382
    CW l2                   100% at 0.0954; foolbox 100% at 0.1033, torchattacks 100% at 0.1715
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np

LIBRARIES = ("jaxrobust", "torchattacks", "foolbox", "art")

# name: settings; radii in units of pixels in [0, 1]
ATTACKS = {
    "fgsm_linf_8": {"kind": "fgsm", "norm": "linf", "eps": 8 / 255},
    "fgsm_linf_1": {"kind": "fgsm", "norm": "linf", "eps": 1 / 255},
    "pgd20_linf_8": {"kind": "pgd", "norm": "linf", "eps": 8 / 255, "step": 2 / 255, "steps": 20},
    "pgd20_gradients": {"kind": "gradients", "norm": "linf", "steps": 20},
    "pgd20_linf_0.5": {
        "kind": "pgd", "norm": "linf", "eps": 0.5 / 255, "step": 0.125 / 255, "steps": 20
    },
    "pgd20_l2_0.1": {"kind": "pgd", "norm": "l2", "eps": 0.1, "step": 0.025, "steps": 20},
    "mi_fgsm_linf_8": {
        "kind": "mi", "norm": "linf", "eps": 8 / 255, "step": 0.8 / 255, "steps": 10
    },
    "mi_fgsm_linf_0.5": {
        "kind": "mi", "norm": "linf", "eps": 0.5 / 255, "step": 0.05 / 255, "steps": 10
    },
    "deepfool_l2": {"kind": "deepfool", "norm": "l2", "steps": 50},
    "deepfool_linf": {"kind": "deepfool", "norm": "linf", "steps": 50},
    "cw_l2": {"kind": "cw", "norm": "l2"},
    "cw_linf": {"kind": "cw", "norm": "linf"},
}  # fmt: skip


def images(data: pathlib.Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The first test images, as floats, and their labels."""
    with np.load(data / "cifar10_test2000.npz") as archive:
        x = archive["x"][:size].astype(np.float32) / np.float32(255)
        return x, archive["y"][:size].astype(np.int64)


# --- ours -----------------------------------------------------------------------------------------


def ours(data: pathlib.Path, depth: int):
    """Returns ``(predict, attack)``; arrays are NHWC on the outside."""
    import jax
    import jax.numpy as jnp

    from jaxrobust import attacks
    from jaxrobust.zoo.resnet import load_cifar10

    apply_fn, params = load_cifar10(depth, data)
    key = jax.random.key(0)

    def predict(x):
        return np.asarray(jax.jit(apply_fn)(params, jnp.asarray(x)).argmax(-1))

    @jax.jit
    @jax.grad
    def gradient(x, params, y):
        rows = jax.nn.log_softmax(apply_fn(params, x))
        return -jnp.take_along_axis(rows, y[:, None], 1).sum()

    def attack(x, y, s, cw):
        model = (apply_fn, params)
        y = y.astype(np.int32)
        if s["kind"] == "gradients":
            for _ in range(s["steps"]):
                jax.block_until_ready(gradient(x, params, y))
            return x
        match s["kind"]:
            case "fgsm":
                r = attacks.fgsm(*model, x, y, eps=s["eps"], norm=s["norm"])
            case "pgd":
                r = attacks.pgd(
                    *model, key, x, y, eps=s["eps"], norm=s["norm"],
                    step_size=s["step"], num_steps=s["steps"],
                )  # fmt: skip
            case "mi":
                r = attacks.mi_fgsm(*model, x, y, eps=s["eps"], step_size=s["step"])
            case "deepfool":
                r = attacks.deepfool(*model, x, y, norm=s["norm"], num_steps=s["steps"])
            case "cw":
                r = attacks.carlini_wagner(
                    *model, x, y, norm=s["norm"], num_steps=cw["steps"],
                    num_bisections=cw["bisections"], warm_start=cw["warm_start"],
                )  # fmt: skip
        return np.asarray(r.x_adv)

    return predict, attack


# --- peers ----------------------------------------------------------------------------------------


def torch_resnet(data: pathlib.Path, depth: int, double: bool):
    """The same network in torch, from the same file; in double precision inside, if asked."""
    import torch
    import torch.nn.functional as F

    with np.load(data / f"resnet{depth}_cifar10.npz") as archive:
        w = {k: torch.from_numpy(v) for k, v in archive.items()}
    if double:
        w = {k: v.double() for k, v in w.items()}

    class ResNet(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.anchor = torch.nn.Parameter(torch.zeros(()), requires_grad=False)

        def conv(self, x, conv, norm, stride=1):
            x = F.conv2d(x, w[f"{conv}.weight"], stride=stride, padding=1)
            stats = (w[f"{norm}.running_mean"], w[f"{norm}.running_var"])
            return F.batch_norm(x, *stats, w[f"{norm}.weight"], w[f"{norm}.bias"], eps=1e-5)

        def forward(self, x):
            x = x.double() if double else x
            mean = torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1)
            std = torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1)
            x = F.relu(self.conv((x - mean) / std, "conv1", "bn1"))
            for i in (1, 2, 3):
                for j in range((depth - 2) // 6):
                    name, stride = f"layer{i}.{j}", 2 if i > 1 and j == 0 else 1
                    y = F.relu(self.conv(x, f"{name}.conv1", f"{name}.bn1", stride))
                    y = self.conv(y, f"{name}.conv2", f"{name}.bn2")
                    if stride == 2:
                        pad = y.shape[1] // 4
                        x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, pad, pad))
                    x = F.relu(x + y)
            return F.linear(x.mean((2, 3)), w["linear.weight"], w["linear.bias"])

    return ResNet().eval()


def peer(library: str, data: pathlib.Path, depth: int, double: bool):
    """Returns ``(predict, attack)``; ``attack`` gives None where the library has no such attack."""
    import torch

    torch.manual_seed(0)
    if threads := os.environ.get("TORCH_THREADS"):  # fewer is faster on a busy machine
        torch.set_num_threads(int(threads))
    np.random.seed(0)  # noqa: NPY002 (what ART draws from)
    net = torch_resnet(data, depth, double)

    def predict(x):
        with torch.no_grad():
            return net(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).argmax(1).numpy()

    make = {"torchattacks": with_torchattacks, "foolbox": with_foolbox, "art": with_art}[library]

    def attack(x, y, settings, cw):
        run = make(net, settings, cw)
        if run is None:
            return None
        x_adv = run(x.transpose(0, 3, 1, 2).copy(), y)
        return np.asarray(x_adv).transpose(0, 2, 3, 1)

    return predict, attack


def bare_gradients(net, steps):
    """Gradients of the cross-entropy in torch, and no attack."""
    import torch

    def run(x, y):
        x, y = torch.from_numpy(x).requires_grad_(), torch.from_numpy(y)
        for _ in range(steps):
            torch.autograd.grad(torch.nn.functional.cross_entropy(net(x), y), x)
        return x.detach().numpy()

    return run


def with_torchattacks(net, s, cw):
    """The attack of torchattacks."""
    import torch
    import torchattacks as ta

    kind, eps, step = s["kind"], s.get("eps"), s.get("step")
    if kind == "gradients":
        return bare_gradients(net, s["steps"])
    if kind == "fgsm":
        attack = ta.FGSM(net, eps=eps)
    elif kind == "pgd" and s["norm"] == "linf":
        attack = ta.PGD(net, eps=eps, alpha=step, steps=s["steps"], random_start=True)
    elif kind == "pgd":
        attack = ta.PGDL2(net, eps=eps, alpha=step, steps=s["steps"], random_start=True)
    elif kind == "mi":
        attack = ta.MIFGSM(net, eps=eps, alpha=step, steps=s["steps"], decay=1.0)
    elif kind == "deepfool" and s["norm"] == "l2":
        attack = ta.DeepFool(net, steps=s["steps"], overshoot=0.02)
    elif kind == "cw" and s["norm"] == "l2":  # one constant, no bisection: all steps on it
        attack = ta.CW(net, c=1, kappa=0, steps=cw["steps"] * cw["bisections"], lr=0.01)
    else:
        return None
    return lambda x, y: attack(torch.from_numpy(x), torch.from_numpy(y)).detach().numpy()


def with_foolbox(net, s, cw):
    """The attack of foolbox."""
    import foolbox as fb
    import torch

    kind, norm = s["kind"], s["norm"]
    linf = norm == "linf"
    if kind == "fgsm":
        attack = fb.attacks.LinfFastGradientAttack()
    elif kind == "pgd":
        cls = fb.attacks.LinfPGD if linf else fb.attacks.L2PGD
        attack = cls(abs_stepsize=s["step"], steps=s["steps"], random_start=True)
    elif kind == "mi" and hasattr(fb.attacks, "LinfMomentumIterativeFastGradientMethod"):
        cls = fb.attacks.LinfMomentumIterativeFastGradientMethod
        attack = cls(abs_stepsize=s["step"], steps=s["steps"], momentum=1.0)
    elif kind == "deepfool":
        cls = fb.attacks.LinfDeepFoolAttack if linf else fb.attacks.L2DeepFoolAttack
        attack = cls(steps=s["steps"], candidates=10, overshoot=0.02)
    elif kind == "cw" and not linf:
        attack = fb.attacks.L2CarliniWagnerAttack(
            binary_search_steps=cw["bisections"],
            steps=cw["steps"],
            stepsize=0.01,
            initial_const=1e-3,
        )
    else:
        return None
    model = fb.PyTorchModel(net, bounds=(0, 1), device="cpu")

    def run(x, y):
        _, clipped, _ = attack(
            model, torch.from_numpy(x), torch.from_numpy(y), epsilons=s.get("eps")
        )
        return clipped.numpy()

    return run


def with_art(net, s, cw):
    """The attack of the Adversarial Robustness Toolbox."""
    import torch
    from art.attacks import evasion
    from art.estimators.classification import PyTorchClassifier

    model = PyTorchClassifier(
        net, torch.nn.CrossEntropyLoss(), (3, 32, 32), 10, clip_values=(0, 1), device_type="cpu"
    )
    kind, linf = s["kind"], s["norm"] == "linf"
    common = {"batch_size": 100, "verbose": False}
    norm = np.inf if linf else 2
    if kind == "fgsm":
        attack = evasion.FastGradientMethod(model, norm=norm, eps=s["eps"], batch_size=100)
    elif kind == "pgd":
        attack = evasion.ProjectedGradientDescent(
            model, norm=norm, eps=s["eps"], eps_step=s["step"], max_iter=s["steps"],
            num_random_init=1, **common,
        )  # fmt: skip
    elif kind == "mi":
        attack = evasion.MomentumIterativeMethod(
            model, norm=norm, eps=s["eps"], eps_step=s["step"], max_iter=s["steps"], decay=1.0,
            **common,
        )  # fmt: skip
    elif kind == "deepfool" and not linf:
        attack = evasion.DeepFool(model, max_iter=s["steps"], epsilon=0.02, nb_grads=10, **common)
    elif kind == "cw" and not linf:
        attack = evasion.CarliniL2Method(
            model, binary_search_steps=cw["bisections"], max_iter=cw["steps"], learning_rate=0.01,
            initial_const=1e-3, **common,
        )  # fmt: skip
    elif kind == "cw":
        attack = evasion.CarliniLInfMethod(
            model, max_iter=cw["steps"], learning_rate=0.01, **common
        )
    else:
        return None
    return lambda x, y: attack.generate(x, y)


# --- a library's process, and the one that asks them in turn -------------------------------------


def serve(library: str, data: pathlib.Path, depth: int, double: bool) -> None:
    """Answers requests, one JSON line each, until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints goes elsewhere
    if library == "jaxrobust":
        predict, attack = ours(data, depth)
    else:
        predict, attack = peer(library, data, depth, double)
    for line in sys.stdin:
        ask = json.loads(line)
        x, y = images(data, ask["candidates"])
        right = np.flatnonzero(predict(x) == y)[: ask["images"]]
        x, y = x[right], y[right]
        reply = {"indices": right.tolist()}
        if ask["attack"]:
            settings = ATTACKS[ask["attack"]]
            seconds = []
            for _ in range(ask["repeats"]):
                start = time.perf_counter()
                x_adv = attack(x, y, settings, ask["cw"])
                seconds.append(time.perf_counter() - start)
            reply["missing"] = x_adv is None
            if x_adv is not None:
                delta = (x_adv.astype(np.float64) - x).reshape(len(x), -1)
                order = np.inf if settings["norm"] == "linf" else 2
                reply |= {
                    "fooled": (predict(x_adv.astype(np.float32)) != y).tolist(),
                    "distance": np.linalg.norm(delta, order, axis=1).tolist(),
                    "seconds": seconds,
                }
        print(json.dumps(reply), file=answers)


class Worker:
    """A library in a process of its own."""

    def __init__(self, library: str, python: str, arguments: list[str]):
        """Starts it."""
        command = [python, __file__, "--serve", library, *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, **request) -> dict:
        """Sends a request and waits for the reply."""
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"worker ended: {self.process.args}")
        return json.loads(line)


def report(name: str, replies: dict[str, dict]) -> None:
    """Prints one attack's rows."""
    common = np.logical_and.reduce([r["fooled"] for r in replies.values()])
    for library, r in replies.items():
        fooled, distance = np.asarray(r["fooled"]), np.asarray(r["distance"])
        mean = distance[fooled].mean() if fooled.any() else np.nan
        shared = distance[common].mean() if common.any() else np.nan
        first = f" (first {r['seconds'][0]:.1f})" if len(r["seconds"]) > 1 else ""
        print(
            f"{name:17s} {library:13s} fooled {fooled.mean():6.1%}  mean distance {mean:.5f}"
            f"  on common {shared:.5f}  {min(r['seconds']):7.1f} s{first}",
            flush=True,
        )


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, default=os.environ.get("JAXROBUST_DATA"))
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cw-steps", type=int, default=100)
    parser.add_argument("--cw-bisections", type=int, default=9)
    parser.add_argument("--no-warm-start", action="store_true", help="our CW as published")
    parser.add_argument(
        "--peer-double", action="store_true", help="the peers' network and loss in float64"
    )
    parser.add_argument(
        "--only", default="", help="attacks whose name begins so; several with commas"
    )
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data (or JAXROBUST_DATA) must name the folder of weights and images")
    if args.serve:
        return serve(args.serve, args.data, args.depth, args.peer_double)

    passed = ["--data", str(args.data), "--depth", str(args.depth)]
    passed += ["--peer-double"] * args.peer_double
    workers = {
        library: Worker(
            library, sys.executable if library == "jaxrobust" else args.peer_python, passed
        )
        for library in args.libraries.split(",")
    }
    cw = {
        "steps": args.cw_steps,
        "bisections": args.cw_bisections,
        "warm_start": not args.no_warm_start,
    }
    request = {
        "candidates": int(args.images * 1.15) + 10,
        "images": args.images,
        "repeats": args.repeats,
        "cw": cw,
    }
    chosen = {library: w.ask(attack=None, **request)["indices"] for library, w in workers.items()}
    if len({tuple(v) for v in chosen.values()}) > 1:
        raise RuntimeError("the networks disagree on which images are classed rightly")
    for name in ATTACKS:
        if name.startswith(tuple(args.only.split(","))):
            replies = {k: w.ask(attack=name, **request) for k, w in workers.items()}
            report(name, {k: r for k, r in replies.items() if not r["missing"]})
    for worker in workers.values():
        worker.process.stdin.close()
        worker.process.wait()


if __name__ == "__main__":
    main()
