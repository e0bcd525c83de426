# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Data sets by name; a new one is a file with a `DataSet` and a `register` line below."""

from fedpeft.core.errors import DataError
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.registry import DataSet, is_procedural, load, names, packaged, register
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import DataSettings

__all__ = [
    "AnswerVocabulary",
    "DataError",
    "DataSet",
    "DataSettings",
    "Example",
    "SiteData",
    "is_procedural",
    "load",
    "names",
    "register",
]

register("phantom", "fedpeft.data.phantom:DATASET")
register("phantom_modalities", "fedpeft.data.phantom:MODALITIES_DATASET")
register("phantom_ultra", "fedpeft.data.ultra_med_vqa:PROCEDURAL")
register("phantom_chest", "fedpeft.data.phantom_pictures:CHEST_DATASET")
register("phantom_skin", "fedpeft.data.phantom_pictures:SKIN_DATASET")
register("phantom_objects", "fedpeft.data.phantom_pictures:OBJECTS_DATASET")
register("phantom_flowers", "fedpeft.data.phantom_pictures:FLOWERS_DATASET")
register("slake", "fedpeft.data.published_vqa:SLAKE")
register("vqa_rad", "fedpeft.data.published_vqa:VQA_RAD")
register("vqa_med_2018", "fedpeft.data.vqa_med:VQA_MED_2018")
register("vqa_med_2019", "fedpeft.data.vqa_med:VQA_MED_2019")
register("vqa_med_2020", "fedpeft.data.vqa_med:VQA_MED_2020")
register("vqa_med_2021", "fedpeft.data.vqa_med:VQA_MED_2021")
register("path_vqa", "fedpeft.data.published_vqa:PATH_VQA")
register("omni_med_vqa", "fedpeft.data.omni_med_vqa:DATASET")
register("ultra_med_vqa", "fedpeft.data.ultra_med_vqa:DATASET")
register("manifest", "fedpeft.data.manifest:DATASET")
register("hugging_face", "fedpeft.data.hugging_face:DATASET")
register("nih_cxr14", "fedpeft.data.chest_x_rays:NIH_CXR14")
register("open_i", "fedpeft.data.open_i:DATASET")
register("mimic_cxr_jpg", "fedpeft.data.chest_x_rays:MIMIC_CXR_JPG")
register("fed_isic2019", "fedpeft.data.classified_photographs:FED_ISIC2019")
register("ham10000", "fedpeft.data.classified_photographs:HAM10000")
register("caltech101", "fedpeft.data.classified_photographs:CALTECH101")
register("flowers102", "fedpeft.data.classified_photographs:FLOWERS102")
for name in packaged("medmnist"):
    register(name, f"fedpeft.data.medmnist:{name.upper()}")

# last, because folders of images occur in other layouts too
register("class_folders", "fedpeft.data.class_folders:DATASET")
