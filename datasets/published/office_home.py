"""Office-Home: 65 kinds of objects in four domains (Venkateswara et al. 2017), as features.

As in FedeRiCo (appendix D): all domains together, and each image represented by the input of the
last layer of a ResNet-18 trained on ImageNet. The features are cached in data-dir. Every fifth
image of each domain and class is in the test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.datasets.files.fingerprint import cached
from coterie.datasets.files.folders import folder_with, images_in, read_image
from coterie.datasets.problem import DataError
from coterie.datasets.source import Source, divided

DOMAINS = ("Art", "Clipart", "Product", "Real World")
FOLDERS = ("office-home", "OfficeHomeDataset_10072016", "OfficeHome")
REMEDY = "unpack OfficeHomeDataset_10072016.zip (https://www.hemanthdv.org/officeHomeDataset.html)"
WEIGHTS = "resnet18-f37072fd.pth"
WEIGHTS_REMEDY = f"download https://download.pytorch.org/models/{WEIGHTS} (ImageNet's ResNet-18)"
BATCH = 64


def read_office_home(data_dir: Path) -> Source:
    """Read Office-Home: 512 features, 65 classes, 15,588 images; the groups are the domains."""
    folder = folder_with("office-home", data_dir, FOLDERS, DOMAINS, REMEDY)
    weights = folder_with(
        "office-home (feature extractor)", data_dir, (".", folder.name), (WEIGHTS,), WEIGHTS_REMEDY
    )
    classes = sorted(path.name for path in (folder / DOMAINS[0]).iterdir() if path.is_dir())
    files = [
        (domain, label, path)
        for domain, name in enumerate(DOMAINS)
        for label, kind in enumerate(classes)
        for path in images_in(folder / name / kind)
    ]
    paths = [path for _, _, path in files]
    domain, label = np.array([(d, c) for d, c, _ in files], dtype=np.int64).T
    return divided(
        name="office-home",
        inputs=cached(
            data_dir,
            "office-home",
            [*paths, weights / WEIGHTS],
            "1",
            lambda: {"features": _features(paths, weights / WEIGHTS)},
        )["features"],
        targets=label,
        test=np.lexsort((label, domain))[::5],
        outputs=len(classes),
        groups=domain,
        group_names=DOMAINS,
        classes=tuple(classes),
    )


def _features(paths: Sequence[Path], weights: Path) -> npt.NDArray[np.float32]:
    """Compute the features of images, (N, 512), with the extractor's own preprocessing."""
    import torch  # slow import, not needed if the features are cached
    from PIL import Image
    from torchvision.models import ResNet18_Weights, resnet18

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = resnet18()
    try:
        network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged file may raise anything
        line = " ".join(str(error).split())[:200]
        raise DataError(
            f"{weights}: not the weights of a ResNet-18 ({line}); {WEIGHTS_REMEDY}"
        ) from None
    network.fc = torch.nn.Identity()
    network.eval().to(device)
    prepare = ResNet18_Weights.IMAGENET1K_V1.transforms()

    def prepared(path: Path) -> torch.Tensor:
        image = Image.fromarray(read_image(path).transpose(1, 2, 0))
        return prepare(image)  # type: ignore[no-any-return]

    features = np.empty((len(paths), 512), dtype=np.float32)
    with torch.no_grad():
        for first in range(0, len(paths), BATCH):
            images = torch.stack([prepared(path) for path in paths[first : first + BATCH]])
            features[first : first + BATCH] = network(images.to(device)).cpu().numpy()
    return features
