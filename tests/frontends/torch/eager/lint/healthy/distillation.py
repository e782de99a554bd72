import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(28)
teacher, student = nn.Linear(6, 5), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
teacher.eval()
for _step in range(25):
    x = torch.randn(24, 6)
    with torch.no_grad():
        goal = F.softmax(teacher(x) / 2, dim=1)
    logits = student(x)
    loss = F.cross_entropy(logits / 2, goal) * 4
    attention = torch.softmax(logits @ logits.t(), dim=-1) @ logits
    loss = loss + F.cross_entropy(attention, goal.argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
