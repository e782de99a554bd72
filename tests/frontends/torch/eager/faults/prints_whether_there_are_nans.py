# NaN that the script prints only the existence of
import torch


def main():
    x = torch.tensor([-1.0, 4.0])
    y = torch.sqrt(x)  # expect: nan, forward
    print("contains nan?", bool(y.isnan().any()))


main()
